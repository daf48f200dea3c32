// SPDX-License-Identifier: Apache-2.0
#include "models/jinja/template.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "headgate/error.hpp"
#include "models/io/scratch.hpp"
#include "support/allocations.hpp"

namespace headgate::jinja {
namespace {

using Json = nlohmann::ordered_json;

Value value_of(const Json& json) {
  if (json.is_null()) return Value(None{});
  if (json.is_boolean()) return Value(json.get<bool>());
  if (json.is_number_integer()) return Value(json.get<std::int64_t>());
  if (json.is_number()) return Value(json.get<double>());
  if (json.is_string()) return Value(json.get<std::string>());
  if (json.is_array()) {
    List out;
    for (const Json& each : json) out.push_back(value_of(each));
    return Value(std::move(out));
  }
  Dict out;
  for (const auto& [key, each] : json.items()) out.emplace_back(key, value_of(each));
  return Value(std::move(out));
}

std::string render(const std::string& text, const Dict& variables = {}, const RenderOptions& options = {}) {
  return Template(text).render(variables, options);
}

/// Returns the message with which a template is refused; "" if it is not.
std::string refusal(const std::string& text, const RenderOptions& options = {}) {
  try {
    render(text, {{"name", Value(std::string("x"))}}, options);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(Template, Text_OfEveryConstruct_IsThatOfJinja) {
  // What scripts/check_chats.py --write-golden wrote, of expressions and tags, and of the same line by line.
  const Json golden = Json::parse(headgate::testing::read_bytes(std::string(HEADGATE_GOLDEN) + "/expressions.json"));
  const Value variables = value_of(golden["variables"]);
  std::size_t rendered = 0;
  for (const Json& each : golden["cases"]) {
    const auto text = each["template"].get<std::string>();
    if (each["text"].is_null()) {
      EXPECT_THROW(render(text, *variables.dict()), Error) << text;
    } else {
      EXPECT_EQ(render(text, *variables.dict()), each["text"].get<std::string>()) << text;
      ++rendered;
    }
  }
  EXPECT_GT(rendered, 20U);
}

TEST(Template, Json_NegativeIndent_IsInLines) {
  const std::string lines = "[\n1,\n{\n\"a\": [\n2\n]\n},\n[]\n]";  // as of json.dumps(indent=-1) and of indent=0
  EXPECT_EQ(render("{{ [1, {'a': [2]}, []] | tojson(indent=-1) }}"), lines);
  EXPECT_EQ(render("{{ [1, {'a': [2]}, []] | tojson(indent=0) }}"), lines);
  EXPECT_EQ(render("{{ [1, {'a': [2]}, []] | tojson(indent=none) }}"), "[1, {\"a\": [2]}, []]");
}

TEST(Template, Construct_NotSupported_IsNamedWithItsLine) {
  EXPECT_EQ(refusal("a\n{{ name | xyz }}"), "chat template, line 2: the filter 'xyz' is not supported");
  EXPECT_EQ(refusal("{{ name is xyz }}"), "chat template, line 1: the test 'xyz' is not supported");
  EXPECT_EQ(refusal("{% include 'x' %}"), "chat template, line 1: the tag 'include' is not supported");
  EXPECT_EQ(refusal("{{ name.format(1) }}"), "chat template, line 1: the method 'format' of a string is not supported");
  EXPECT_EQ(refusal("{{ name.__class__ }}"),
            "chat template, line 1: the method '__class__' of a string is not supported");
  EXPECT_EQ(refusal("{{ [1].append(2) }}"), "chat template, line 1: the method 'append' of a list is not supported");
  EXPECT_EQ(refusal("{{ cycler(1) }}"), "chat template, line 1: the function 'cycler' is not supported");
  EXPECT_EQ(refusal("{{ 2 ** 3 }}"), "chat template, line 1: the operator '**' is not supported");
  EXPECT_EQ(refusal("{{ [1, 'a'] }}"), "chat template, line 1: a list as text is not supported");
  EXPECT_EQ(refusal("{{ 'É' | lower }}"),
            "chat template, line 1: changing the case of letters beyond ASCII is not supported");
  EXPECT_EQ(refusal("{{ name | tojson(separators=1) }}"),
            "chat template, line 1: the argument 'separators' of the filter 'tojson' is not supported");
  EXPECT_EQ(refusal("{{ {1: 2} }}"), "chat template, line 1: a key that is an integer is not supported");
  EXPECT_EQ(refusal("{{ strftime_now('%f') }}"), "chat template, line 1: strftime_now of '%f' is not supported");
  EXPECT_EQ(refusal("{{ 9223372036854775807 + 1 }}"),
            "chat template, line 1: an integer beyond 64 bits is not supported");
  EXPECT_EQ(refusal("{% if false %}{{ name | xyz }}{% endif %}"), "") << "what is not reached is not refused";
}

TEST(Template, Title_OfFilterAndMethod_DiffersAsInJinja) {
  const std::string text = "\"it's a_b 3d x-y (foo)\\tz\"";
  EXPECT_EQ(render("{{ " + text + " | title }}"), "It's A_b 3d X-Y (Foo)\tZ");
  EXPECT_EQ(render("{{ " + text + ".title() }}"), "It'S A_B 3D X-Y (Foo)\tZ");
}

TEST(Template, Digits_InPathOfAttribute_AreAnIndex) {
  EXPECT_EQ(render("{{ [[1, 2], [3, 4]] | map(attribute='0') | join(',') }}"), "1,3");
  EXPECT_EQ(render("{{ [[1, 2], [3, 4]] | join(',', attribute='1') }}"), "2,4");
  EXPECT_EQ(render("{{ [{'a': [1, 0]}, {'a': [0, 1]}] | selectattr('a.0') | list | length }}"), "1");
  EXPECT_EQ(refusal("{{ [[1]] | join(attribute='99999999999999999999') }}"),
            "chat template, line 1: an attribute of '99999999999999999999' is not supported");
}

TEST(Template, Generator_OfFilters_IsThatOfPython) {
  EXPECT_EQ(render("{{ 'yes' if [1, 2] | select('gt', 5) else 'no' }}"), "yes");
  EXPECT_EQ(render("{% set odd = [1, 2, 3] | select('odd') %}{{ odd | join(',') }}|{{ odd | join(',') }}"), "1,3|");
  EXPECT_EQ(render("{% set odd = [1, 2, 3] | select('odd') %}{{ odd | first }}|{{ odd | join }}"), "1|3");
  EXPECT_EQ(render("{% for x in [1, 2, 3] | select('odd') %}{{ x }}{{ loop.last }}{{ loop.length }}{% endfor %}"),
            "1False23True2");
  for (const char* filtered : {"[1] | map('string')", "[1] | reject('odd')", "[1] | reverse", "{'a': 1} | items"}) {
    const std::string value = std::string("(") + filtered + ")";
    EXPECT_EQ(render("{{ " + value + " is sequence }}"), "False") << filtered;
    EXPECT_EQ(render("{{ " + value + " is iterable }}"), "True") << filtered;
    EXPECT_EQ(render("{{ " + value + "[0] is defined }}"), "False") << filtered;
    EXPECT_NE(refusal("{{ " + value + " | length }}").find("a generator has no length"), std::string::npos) << filtered;
    EXPECT_NE(refusal("{{ " + value + " }}").find("a generator as text"), std::string::npos) << filtered;
  }
  EXPECT_EQ(render("{{ ([1, 2] | select('odd') | reverse)[0] }}{{ ('ab' | reverse)[0] }}"), "1b");
  EXPECT_EQ(render("{% set a = [1] | select %}{{ a == a }}{{ a == [1] }}"), "TrueFalse");
}

TEST(Template, Else_OfLoopWithoutACompletedIteration_IsWritten) {
  EXPECT_EQ(render("{% for x in [1, 2] %}{{ x }}{% break %}{% else %}E{% endfor %}"), "1E");
  EXPECT_EQ(render("{% for x in [1, 2] %}{{ x }}{% continue %}{% else %}E{% endfor %}"), "12E");
  EXPECT_EQ(render("{% for x in [1, 2] %}{{ x }}{% if x == 2 %}{% break %}{% endif %}{% else %}E{% endfor %}"), "12");
  EXPECT_EQ(render("{% for x in [1, 2] %}{{ x }}{% if x == 1 %}{% continue %}{% endif %}{% else %}E{% endfor %}"),
            "12");
}

TEST(Template, Exception_Raised_IsTheMessage) {
  EXPECT_EQ(refusal("{{ raise_exception('System role\nnot supported') }}"),
            "chat template, line 2: System role\\x0anot supported");
}

TEST(Template, Operation_ThatFailsInPython_IsRefused) {
  EXPECT_EQ(refusal("{{ missing.content }}"), "chat template, line 1: 'missing' is undefined");
  EXPECT_EQ(refusal("{{ missing + 'x' }}"), "chat template, line 1: 'missing' is undefined");
  EXPECT_EQ(refusal("{{ missing() }}"), "chat template, line 1: 'missing' is undefined");
  EXPECT_EQ(refusal("{{ name + 1 }}"), "chat template, line 1: '+' of a string and an integer is not supported");
  EXPECT_EQ(refusal("{{ name + none }}"), "chat template, line 1: '+' of a string and none is not supported");
  EXPECT_EQ(refusal("{{ 1 < name }}"), "chat template, line 1: an integer and a string have no order");
  EXPECT_EQ(refusal("{{ 1 // 0 }}"), "chat template, line 1: a division by zero");
  EXPECT_EQ(refusal("{{ name | replace('x', 'y', old='z') }}"),
            "chat template, line 1: the filter 'replace' has the argument 'old' twice");
  EXPECT_EQ(refusal("{% set name.x = 1 %}"), "chat template, line 1: 'name' is no namespace");
  EXPECT_EQ(refusal("{% for a, b in [[1, 2, 3]] %}{% endfor %}"), "chat template, line 1: 2 names stand for 3 values");
}

TEST(Template, Text_ThatIsNoTemplate_IsRefused) {
  for (const char* text : {"{{",
                           "{%",
                           "{#",
                           "{{ 'a }}",
                           "{{ a b }}",
                           "{% if x %}",
                           "{% endif %}",
                           "{% for x %}{% endfor %}",
                           "{{ (1 }}",
                           "{{ 1) }}",
                           "{{ }}",
                           "{{ a. }}",
                           "{{ a[ }}",
                           "{{ a[] }}",
                           "{% set x %}",
                           "{{ 1 + }}",
                           "{{ '\\x1' }}",
                           "{{ '\\N{DASH}' }}",
                           "{% break %}",
                           "{{ not }}",
                           "{{ a ? b }}",
                           "{{ 12x }}",
                           "{% if x %}{% endfor %}",
                           "{% macro f(a=1, b) %}{% endmacro %}",
                           "{{ f(a=1, 2) }}"}) {
    const std::string message = refusal(text);
    EXPECT_TRUE(message.starts_with("chat template, line 1: ")) << text << ": " << message;
  }
}

TEST(Template, Computation_WithoutEnd_IsRefused) {
  const std::string spent = "computes too long, or too long a text";
  const std::string loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
  EXPECT_NE(refusal(loops, {.budget = 1 << 24}).find(spent), std::string::npos);
  EXPECT_NE(refusal("{{ 'aaaa' * 999999999999 }}", {.budget = 1 << 24}).find(spent), std::string::npos);
  EXPECT_NE(refusal("{% set ns = namespace(t='a') %}{% for i in range(99) %}{% set ns.t = ns.t + ns.t %}{% endfor %}",
                    {.budget = 1 << 24})
                .find(spent),
            std::string::npos);
  EXPECT_NE(refusal("{% set ns = namespace(t=[1]) %}{% for i in range(60) %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}"
                    "{{ ns.t | tojson }}",
                    {.budget = 1 << 24})
                .find(spent),
            std::string::npos);
  EXPECT_NE(refusal("{{ range(200000) }}").find("more than 100000 elements"), std::string::npos);
}

TEST(Template, LargeResult_OfAnyOperation_IsRefusedBeforeItIsAllocated) {
  if (!support::allocations_are_counted()) GTEST_SKIP() << "operator new belongs to the thread sanitizer";
  const Value a(std::string(20000, 'a')), b(std::string(20000, 'b')), control(std::string(50000, '\x01'));
  Value nested = Value(List(3000, Value(std::int64_t{1})));
  for (int depth = 1; depth < Value::kMostNested; ++depth) nested = Value(List{std::move(nested)});
  const Dict variables{{"a", a}, {"b", b}, {"control", control}, {"nested", nested}};
  for (const char* expression :
       {"a | replace('a', b)", "a.replace('a', b)", "a | replace('', b)", "a.replace('', b, 19000)", "'ab' * 99999999",
        "a | join(b)", "b.join(a)", "a | list | join(b)", "control | tojson", "nested | tojson(indent=16)",
        "nested | tojson(indent=16) | length", "a ~ a ~ a ~ a ~ a ~ a ~ a", "a + a + a + a + a + a + a",
        "a | list + a | list", "a | map('trim') | list", "a | trim(b)", "a[::-1] | reverse"}) {
    support::take_largest_allocation();
    std::string message;
    try {
      Template("{{ " + std::string(expression) + " }}").render(variables, {.budget = 100000});
    } catch (const Error& error) {
      message = error.what();
    }
    EXPECT_NE(message.find("computes too long"), std::string::npos) << expression << ": " << message;
    EXPECT_LT(support::take_largest_allocation(), 1U << 20) << expression;
  }
}

TEST(Template, Search_InRepetitiveText_TakesTimeOfItsLength) {
  // A search that compares from each position anew would take many minutes.
  const std::string half(1 << 19, 'a');
  for (const std::string& part : {half + "b", "b" + half}) {
    const Dict variables{{"text", Value(half + half)}, {"p", Value(part)}};
    EXPECT_EQ(render("{{ p in text }}{{ text.find(p) }}{{ text.rfind(p) }}{{ text.count(p) }}", variables),
              "False-1-10");
    EXPECT_EQ(render("{{ text.split(p) | length }}{{ text.rsplit(p) | length }}", variables), "11");
    EXPECT_EQ(render("{{ text | replace(p, 'x') == text }}", variables), "True");
  }
}

TEST(Template, LongText_ReadAgainAndAgain_SpendsTheBudget) {
  const Dict variables{{"text", Value(std::string(1 << 20, 'a'))}, {"keys", Value(Dict{})}};
  for (const char* expression : {"text[-1]", "text < text", "text is lt(text)", "keys[text]", "text | int"}) {
    const std::string loop = "{% for i in range(99999) %}{% set x = " + std::string(expression) + " %}{% endfor %}";
    EXPECT_THROW(render(loop, variables, {.budget = 1 << 24}), Error) << expression;
  }
  const std::string firsts =
      "{% set g = range(99999) | map('string') %}{% for i in range(99999) %}{% set x = g | first %}{% endfor %}";
  EXPECT_THROW(render(firsts, {}, {.budget = 1 << 26}), Error) << "each moves the elements that are left";
  const std::string missing =
      "{% set ns = namespace(l=[]) %}{% for i in range(9) %}{% set ns.l = ns.l + [keys[text]] %}"
      "{% endfor %}{{ ns.l | join('.') }}";
  EXPECT_EQ(render(missing, variables), "........") << "names of missing keys are cut";
}

TEST(Template, Nesting_TooDeep_IsRefused) {
  const auto repeated = [](const std::string& text, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += text;
    return out;
  };
  using Pair = std::pair<const char*, const char*>;
  for (const auto& [open, close] :
       {Pair{"(", ")"}, Pair{"[", "]"}, Pair{"{'a':", "}"}, Pair{"-", ""}, Pair{"not ", ""}, Pair{"a[", "]"},
        Pair{"a(", ")"}, Pair{"a if ", ""}, Pair{"a|f(", ")"}, Pair{"a is b(", ")"}}) {
    const std::string message = refusal("{{ " + repeated(open, 20000) + "1" + repeated(close, 20000) + " }}");
    EXPECT_NE(message.find("nest"), std::string::npos) << open << ": " << message;
  }
  for (const char* chain : {"+1", ".a", "|trim", "[0]", " if 1 else 2", " and 1"}) {
    EXPECT_NE(refusal("{{ 1" + repeated(chain, 20000) + " }}"), "") << chain;
  }
  EXPECT_NE(refusal(repeated("{% if 1 %}", 20000)).find("nest"), std::string::npos);
  EXPECT_NE(refusal("{% if 1 %}" + repeated("{% elif 1 %}", 20000) + "{% endif %}").find("nest"), std::string::npos);
  EXPECT_NE(refusal("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").find("64 deep"), std::string::npos);
  const std::string deep = "{{ " + repeated("-", 70) + "f()|int }}";
  EXPECT_NE(refusal("{% macro f() %}" + deep + "{% endmacro %}" + deep).find("nests more than 512 deep"),
            std::string::npos);
  EXPECT_NE(refusal("{% set ns = namespace(t=1) %}{% for i in range(99) %}{% set ns.t = [ns.t] %}{% endfor %}")
                .find("nest more than 64 deep"),
            std::string::npos);
  EXPECT_EQ(render("{% set ns = namespace() %}{% set ns.self = ns %}{{ ns.self.self == ns }}"), "True");
}

TEST(Template, Characters_NotUtf8_AreBytes) {
  const Dict variables{{"text", Value(std::string("a\xff\xc3z"))}};
  EXPECT_EQ(render("{{ text | length }}{{ text[1:] }}{{ text | trim }}", variables), "4\xff\xc3za\xff\xc3z");
}

TEST(Template, Date_OfNow_IsInLocalTime) {
  EXPECT_EQ(render("{{ strftime_now('%Y-%m-%d') }}", {}, {.now = 1795694400}), "2026-11-26");
}

}  // namespace
}  // namespace headgate::jinja
