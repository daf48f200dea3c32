// SPDX-License-Identifier: Apache-2.0
#include "models/jinja/builtins.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "models/io/input_file.hpp"
#include "models/jinja/text.hpp"

namespace headgate::jinja {
namespace {

using Names = std::span<const std::string_view>;

/// Describes a call of a built-in filter, test, method or function.
struct Call {
  std::string_view name;
  const Value& value;            ///< the value to which the filter or test is applied, or the object of the method
  std::vector<Value> arguments;  ///< one value per parameter; undefined if the call does not set the parameter
  const Arguments& all;
  Budget& budget;
  std::time_t now = 0;

  bool given(std::size_t i) const { return !arguments[i].is_undefined(); }
  const std::string& text(std::size_t i) const { return string_in(arguments[i]); }
  const std::string& string_in(const Value& from) const {
    const std::string* text = from.string();
    if (text == nullptr) raise_error("'{}' needs a string, got {}", name, from.kind());
    budget.take(text->size());
    return *text;
  }
  std::int64_t integer(std::size_t i, std::int64_t otherwise) const {
    if (!given(i)) return otherwise;
    std::int64_t storage = 0;
    const std::int64_t* integer = arguments[i].integer(storage);
    if (integer == nullptr) raise_error("'{}' needs an integer, got {}", name, arguments[i].kind());
    return *integer;
  }
  /// Returns the filtered value as text. Returns an empty string for an undefined value.
  std::string filtered() const {
    std::string out = text_of(value);
    budget.take(out.size());
    return out;
  }
};

constexpr std::size_t kMostParameters = 3;

struct Row {
  std::string_view name;
  Value (*run)(const Call& call);
  std::array<std::string_view, kMostParameters> parameters{};
  std::size_t needed = 0;  ///< number of required parameters, which come first
  /// Whether run() accepts any arguments. run() then reads them from Call::all, because `parameters` is empty.
  bool any_arguments = false;
};

/// Checks the arguments of the built-in `name`, then runs it. In messages, `what` tells its kind, such as "filter".
Value run(std::span<const Row> rows, std::string_view what, std::string_view name, const Value& value,
          const Arguments& given, Budget& budget, std::time_t now = 0) {
  budget.take(Budget::kStep);
  const auto row = std::find_if(rows.begin(), rows.end(), [name](const Row& each) { return each.name == name; });
  if (row == rows.end()) raise_error("the {} '{}' is not supported", what, io::printable(name));
  Call call{.name = row->name,
            .value = value,
            .arguments = std::vector<Value>(kMostParameters),
            .all = given,
            .budget = budget,
            .now = now};
  if (row->any_arguments) return row->run(call);
  const auto end = std::find(row->parameters.begin(), row->parameters.end(), "");
  if (given.unnamed.size() > static_cast<std::size_t>(end - row->parameters.begin())) {
    raise_error("the {} '{}' has {} arguments, too many", what, row->name, given.unnamed.size());
  }
  std::copy(given.unnamed.begin(), given.unnamed.end(), call.arguments.begin());
  for (const auto& [key, each] : given.named) {
    const auto parameter = std::find(row->parameters.begin(), end, key);
    if (parameter == end) {
      raise_error("the argument '{}' of the {} '{}' is not supported", io::printable(key), what, row->name);
    }
    const auto place = static_cast<std::size_t>(parameter - row->parameters.begin());
    if (place < given.unnamed.size()) raise_error("the {} '{}' has the argument '{}' twice", what, row->name, key);
    call.arguments[place] = each;
  }
  for (std::size_t i = given.unnamed.size(); i < row->needed; ++i) {
    if (find(given.named, row->parameters[i]) == nullptr) {
      raise_error("the {} '{}' lacks the argument '{}'", what, row->name, row->parameters[i]);
    }
  }
  return row->run(call);
}

// --- filters

Value length(const Call& call) {
  const Value& of = call.value;
  std::int64_t count = 0;
  if (const std::string* text = of.string()) {
    call.budget.take(text->size());
    count = characters_in(*text);
  } else if (const List* list = of.list()) {
    count = static_cast<std::int64_t>(list->size());
  } else if (const Dict* dict = of.dict()) {
    count = static_cast<std::int64_t>(dict->size());
  } else if (!of.is_undefined()) {
    raise_error("{} has no length", of.kind());
  }
  return Value(count);
}

Value items_of(const Value& value, Budget& budget) {
  const Dict* dict = value.dict();
  if (dict == nullptr && !value.is_undefined()) raise_error("{} has no items", value.kind());
  List out;
  if (dict != nullptr) {
    budget.take(Budget::kStep * dict->size());
    for (const auto& [key, each] : *dict) out.emplace_back(List{Value(key), each});
  }
  return Value(std::move(out));
}

/// Converts a part of a dotted path to an index. A part that consists of digits becomes an integer, as in Jinja.
Value part_of_path(std::string_view part) {
  const bool digits =
      !part.empty() && std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!digits) return Value(std::string(part));
  std::int64_t index = 0;
  if (std::from_chars(part.data(), part.data() + part.size(), index).ec != std::errc()) {
    raise_error("an attribute of '{}' is not supported", io::printable(part));
  }
  return Value(index);
}

/// Follows a dotted path. The path "a.0", for example, leads to value.a[0]. If an item and an attribute have the same
/// name, the item is used.
Value path_of(const Value& value, const Value& path, Budget& budget) {
  const std::string* names = path.string();
  if (names == nullptr) raise_error("an attribute's name is {}", path.kind());
  Value out = value;
  for (std::string_view rest = *names;;) {
    const std::size_t dot = rest.find('.');
    budget.take(Budget::kStep);
    out = item_of(out, part_of_path(rest.substr(0, dot)), budget);
    if (dot == std::string_view::npos) return out;
    rest.remove_prefix(dot + 1);
  }
}

Value join(const Call& call) {
  std::string out;
  const std::string between = call.given(0) ? text_of(call.arguments[0]) : "";
  bool first = true;
  for (const Value& each : elements_of(call.value, call.budget)) {
    const std::string part = text_of(call.given(1) ? path_of(each, call.arguments[1], call.budget) : each);
    call.budget.take(part.size() + between.size());
    if (!first) out += between;
    first = false;
    out += part;
  }
  return Value(std::move(out));
}

Value int_of(const Call& call) {
  std::int64_t storage = 0;
  if (const std::int64_t* integer = call.value.integer(storage)) return Value(*integer);
  const double* real = call.value.real();
  if (real != nullptr && std::abs(*real) < 9e18) return Value(static_cast<std::int64_t>(*real));
  if (call.value.is_undefined()) raise_error("'{}' is undefined", io::printable(call.value.undefined()->name));
  Value otherwise = call.given(0) ? call.arguments[0] : Value(std::int64_t{0});
  const std::string* text = call.value.string();
  if (text == nullptr) return otherwise;
  call.budget.take(text->size());
  std::string_view digits = stripped(*text, nullptr, {});
  if (digits.starts_with('+') && !digits.starts_with("+-")) digits.remove_prefix(1);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc() && end == digits.data() + digits.size()) return Value(value);
  const bool number = std::any_of(digits.begin(), digits.end(), [](char c) {
    return (c >= '0' && c <= '9') || static_cast<unsigned char>(c) >= 0x80;
  });
  if (number) raise_error("the filter 'int' of '{}' is not supported", io::printable(*text));
  return otherwise;
}

Value end_of(const Call& call, bool first) {
  if (Generator* generator = call.value.generator(); first && generator != nullptr && !generator->left.empty()) {
    call.budget.take(Budget::kStep + generator->left.size());  // pays for erase(), which moves all remaining elements
    Value out = generator->left.front();
    generator->left.erase(generator->left.begin());
    return out;
  }
  const List all = elements_of(call.value, call.budget);
  if (all.empty()) return Value(Undefined{"an element of an empty sequence"});
  return first ? all.front() : all.back();
}

Value reversed(const Call& call) {
  List all = elements_of(call.value, call.budget);
  std::reverse(all.begin(), all.end());
  if (call.value.generator() != nullptr) return Value(std::move(all));
  if (call.value.string() == nullptr) return Value(Generator{std::move(all)});
  std::string out;
  for (const Value& each : all) out += *each.string();
  return Value(std::move(out));
}

/// Returns the first unnamed argument, or null if there is none. If there is one, sets `rest` to the other arguments.
const Value* take_first(const Arguments& from, Arguments& rest) {
  if (from.unnamed.empty()) return nullptr;
  rest.unnamed.assign(from.unnamed.begin() + 1, from.unnamed.end());
  rest.named = from.named;
  return &from.unnamed.front();
}

std::string name_in(const Value& value) {
  const std::string* name = value.string();
  if (name == nullptr) raise_error("the name of a filter or a test is {}", value.kind());
  return *name;
}

Value map(const Call& call) {
  List out;
  Arguments rest;
  const Value *name = take_first(call.all, rest), *path = find(call.all.named, "attribute");
  if (name == nullptr && (path == nullptr || call.all.named.size() != 1)) {
    raise_error("the filter 'map' needs the name of a filter or an attribute alone");
  }
  for (const Value& each : elements_of(call.value, call.budget)) {
    out.push_back(name != nullptr ? apply_filter(name_in(*name), each, rest, call.budget)
                                  : path_of(each, *path, call.budget));
  }
  return Value(Generator{std::move(out)});
}

/// Returns the elements for which a test returns `wanted`. The test is applied to each element, or if `of_attribute` is
/// set, to one attribute of the element.
Value kept(const Call& call, bool of_attribute, bool wanted) {
  List out;
  Arguments tests = call.all, rest;
  const Value* path = of_attribute ? take_first(call.all, tests) : nullptr;
  if (of_attribute && path == nullptr) raise_error("the filter '{}' needs an attribute", call.name);
  const Value* test = take_first(tests, rest);
  for (const Value& each : elements_of(call.value, call.budget)) {
    const Value value = path != nullptr ? path_of(each, *path, call.budget) : each;
    const bool passed = test != nullptr ? apply_test(name_in(*test), value, rest, call.budget) : value.truth();
    if (passed == wanted) out.push_back(each);
  }
  return Value(Generator{std::move(out)});
}

Value replace(const Call& call) {
  const std::string text = call.value.string() != nullptr ? *call.value.string() : call.filtered();
  const std::string from = text_of(call.arguments[0]), to = text_of(call.arguments[1]);
  call.budget.take(text.size() + from.size());
  const std::int64_t most = call.integer(2, -1), all = occurrences(text, from);
  const std::int64_t count = most < 0 ? all : std::min(most, all);
  call.budget.take_product(static_cast<std::size_t>(count), to.size());
  return Value(replaced(text, from, to, count));
}

Value strip(const Call& call, std::string text, Ends ends) {
  call.budget.take(text.size());
  if (!call.given(0) || call.arguments[0].is_none()) return Value(std::string(stripped(text, nullptr, ends)));
  const std::string_view set = call.text(0);
  call.budget.take_product(text.size(), set.size());  // compares each character with every character of `set`
  return Value(std::string(stripped(text, &set, ends)));
}

Value cased(const Call& call, Case to) { return Value(with_case(call.filtered(), to)); }

Value or_default(const Call& call) {
  const bool missing = call.value.is_undefined() || (call.arguments[1].truth() && !call.value.truth());
  if (!missing) return call.value;
  return call.all.unnamed.empty() && !call.given(0) ? Value(std::string()) : call.arguments[0];
}

Value absolute(const Call& call) {
  std::int64_t storage = 0;
  if (const std::int64_t* integer = call.value.integer(storage); integer != nullptr && *integer != INT64_MIN) {
    return Value(*integer < 0 ? -*integer : *integer);
  }
  const double* real = call.value.real();
  if (real == nullptr) raise_error("'abs' needs a number, got {}", call.value.kind());
  return Value(std::abs(*real));
}

Value to_json(const Call& call) {
  if (call.arguments[0].truth()) raise_error("the argument 'ensure_ascii' of the filter 'tojson' is not supported");
  const bool one_line = !call.given(1) || call.arguments[1].is_none();
  const std::int64_t indent = one_line ? -1 : std::max<std::int64_t>(call.integer(1, 0), 0);
  if (indent > 16) raise_error("the filter 'tojson' has an indent of {}, more than 16", indent);
  return Value(json_of(call.value, static_cast<int>(indent), call.budget));
}

constexpr std::array kFilters{
    Row{"abs", absolute},
    Row{"capitalize", [](const Call& c) { return cased(c, Case::capitalize); }},
    Row{"count", length},
    Row{"d", or_default, {"default_value", "boolean"}},
    Row{"default", or_default, {"default_value", "boolean"}},
    Row{"first", [](const Call& c) { return end_of(c, true); }},
    Row{"int", int_of, {"default"}},
    Row{"items", [](const Call& c) { return Value(Generator{elements_of(items_of(c.value, c.budget), c.budget)}); }},
    Row{"join", join, {"d", "attribute"}},
    Row{"last", [](const Call& c) { return end_of(c, false); }},
    Row{"length", length},
    Row{"list", [](const Call& c) { return Value(elements_of(c.value, c.budget)); }},
    Row{"lower", [](const Call& c) { return cased(c, Case::lower); }},
    Row{.name = "map", .run = map, .any_arguments = true},
    Row{.name = "reject", .run = [](const Call& c) { return kept(c, false, false); }, .any_arguments = true},
    Row{.name = "rejectattr", .run = [](const Call& c) { return kept(c, true, false); }, .any_arguments = true},
    Row{"replace", replace, {"old", "new", "count"}, 2},
    Row{"reverse", reversed},
    Row{.name = "select", .run = [](const Call& c) { return kept(c, false, true); }, .any_arguments = true},
    Row{.name = "selectattr", .run = [](const Call& c) { return kept(c, true, true); }, .any_arguments = true},
    Row{"string", [](const Call& c) { return Value(c.filtered()); }},
    Row{"title", [](const Call& c) { return cased(c, Case::words); }},
    Row{"tojson", to_json, {"ensure_ascii", "indent"}},
    Row{"trim", [](const Call& c) { return strip(c, c.filtered(), {}); }, {"chars"}},
    Row{"upper", [](const Call& c) { return cased(c, Case::upper); }},
};

// --- tests

bool is_number(const Value& value) {
  double x = 0.0;
  return value.number(x);
}
bool is_integer(const Value& value) {
  std::int64_t storage = 0;
  return value.integer(storage) != nullptr && value.boolean() == nullptr;
}
bool is_sequence(const Value& value) {
  return value.string() != nullptr || value.list() != nullptr || value.dict() != nullptr || value.is_undefined();
}
std::int64_t remainder(const Call& call, std::int64_t by) {
  std::int64_t storage = 0;
  const std::int64_t* integer = call.value.integer(storage);
  if (integer == nullptr || by == 0) raise_error("the test '{}' divides {} by {}", call.name, call.value.kind(), by);
  return by == -1 ? 0 : *integer % by;
}
int order(const Call& call) { return compare(call.value, call.arguments[0], call.budget); }

Value equals(const Call& call) { return Value(equal(call.value, call.arguments[0], call.budget)); }
Value differs(const Call& call) { return Value(!equal(call.value, call.arguments[0], call.budget)); }

constexpr std::array kTests{
    Row{"!=", differs, {"other"}, 1},
    Row{"<", [](const Call& c) { return Value(order(c) < 0); }, {"other"}, 1},
    Row{"<=", [](const Call& c) { return Value(order(c) <= 0); }, {"other"}, 1},
    Row{"==", equals, {"other"}, 1},
    Row{">", [](const Call& c) { return Value(order(c) > 0); }, {"other"}, 1},
    Row{">=", [](const Call& c) { return Value(order(c) >= 0); }, {"other"}, 1},
    Row{"boolean", [](const Call& c) { return Value(c.value.boolean() != nullptr); }},
    Row{"defined", [](const Call& c) { return Value(!c.value.is_undefined()); }},
    Row{"divisibleby", [](const Call& c) { return Value(remainder(c, c.integer(0, 0)) == 0); }, {"num"}, 1},
    Row{"eq", equals, {"other"}, 1},
    Row{"equalto", equals, {"other"}, 1},
    Row{"even", [](const Call& c) { return Value(remainder(c, 2) == 0); }},
    Row{"false", [](const Call& c) { return Value(c.value.boolean() != nullptr && !c.value.truth()); }},
    Row{"float", [](const Call& c) { return Value(c.value.real() != nullptr); }},
    Row{"ge", [](const Call& c) { return Value(order(c) >= 0); }, {"other"}, 1},
    Row{"greaterthan", [](const Call& c) { return Value(order(c) > 0); }, {"other"}, 1},
    Row{"gt", [](const Call& c) { return Value(order(c) > 0); }, {"other"}, 1},
    Row{"in", [](const Call& c) { return Value(contains(c.arguments[0], c.value, c.budget)); }, {"seq"}, 1},
    Row{"integer", [](const Call& c) { return Value(is_integer(c.value)); }},
    Row{"iterable", [](const Call& c) { return Value(is_sequence(c.value) || c.value.generator() != nullptr); }},
    Row{"le", [](const Call& c) { return Value(order(c) <= 0); }, {"other"}, 1},
    Row{"lessthan", [](const Call& c) { return Value(order(c) < 0); }, {"other"}, 1},
    Row{"lt", [](const Call& c) { return Value(order(c) < 0); }, {"other"}, 1},
    Row{"mapping", [](const Call& c) { return Value(c.value.dict() != nullptr); }},
    Row{"ne", differs, {"other"}, 1},
    Row{"none", [](const Call& c) { return Value(c.value.is_none()); }},
    Row{"number", [](const Call& c) { return Value(is_number(c.value)); }},
    Row{"odd", [](const Call& c) { return Value(remainder(c, 2) != 0); }},
    Row{"sequence", [](const Call& c) { return Value(is_sequence(c.value)); }},
    Row{"string", [](const Call& c) { return Value(c.value.string() != nullptr); }},
    Row{"true", [](const Call& c) { return Value(c.value.boolean() != nullptr && c.value.truth()); }},
    Row{"undefined", [](const Call& c) { return Value(c.value.is_undefined()); }},
};

// --- methods

const std::string& self(const Call& call) { return call.string_in(call.value); }

/// Returns whether a string begins or ends with the argument. `front` selects the beginning. If the argument is a list,
/// one of its strings must match.
Value edge(const Call& call, bool front) {
  const std::string& text = self(call);
  const List one{call.arguments[0]};
  const List* all = call.arguments[0].list() != nullptr ? call.arguments[0].list() : &one;
  return Value(std::any_of(all->begin(), all->end(), [&](const Value& each) {
    const std::string& part = call.string_in(each);
    return front ? text.starts_with(part) : text.ends_with(part);
  }));
}

Value split(const Call& call, bool from_right) {
  const bool white = !call.given(0) || call.arguments[0].is_none();
  // Splits from the right in three steps: reverses the text, splits it from the left, and reverses each part.
  const auto oriented = [from_right](std::string text) {
    if (from_right) std::reverse(text.begin(), text.end());
    return text;
  };
  const std::string text = white ? self(call) : oriented(self(call)), by = white ? "" : oriented(call.text(0));
  std::string_view rest = text;
  if (!white && by.empty()) raise_error("'split' by an empty string");
  std::int64_t most = call.integer(1, -1);
  if (white && most >= 0) raise_error("'split' by white space a number of times is not supported");
  List out;
  if (white) {
    for (rest = stripped(rest, nullptr, {}); !rest.empty(); rest = stripped(rest, nullptr, {})) {
      std::size_t bytes = 0;
      while (bytes < rest.size() && space_at_front(rest.substr(bytes, 4)) == 0)
        bytes += first_bytes(rest.substr(bytes));
      out.emplace_back(std::string(rest.substr(0, bytes)));
      rest.remove_prefix(bytes);
      call.budget.take(Budget::kStep + rest.size() / 64);
    }
    return Value(std::move(out));
  }
  while (most != 0) {
    const std::size_t at = first_place(rest, by);
    if (at == std::string_view::npos) break;
    call.budget.take(Budget::kStep);
    out.emplace_back(oriented(std::string(rest.substr(0, at))));
    rest.remove_prefix(at + by.size());
    most -= most > 0 ? 1 : 0;
  }
  out.emplace_back(oriented(std::string(rest)));
  if (from_right) std::reverse(out.begin(), out.end());
  return Value(std::move(out));
}

Value find_in(const Call& call, bool first) {
  const std::string& text = self(call);
  const std::string& part = call.text(0);
  const std::size_t at = first ? first_place(text, part) : last_place(text, part);
  return Value(at == std::string::npos ? std::int64_t{-1} : characters_in({text.data(), at}));
}

Value without(const Call& call, bool front) {
  std::string_view text = self(call);
  const std::string& part = call.text(0);
  if (front && text.starts_with(part)) text.remove_prefix(part.size());
  if (!front && text.ends_with(part)) text.remove_suffix(part.size());
  return Value(std::string(text));
}

Value count_in(const Call& call) {
  const std::string& text = self(call);
  return Value(occurrences(text, call.text(0)));
}

Value join_by(const Call& call) {
  std::string out;
  bool first = true;
  for (const Value& each : elements_of(call.arguments[0], call.budget)) {
    if (!first) out += self(call);
    first = false;
    out += call.string_in(each);
  }
  return Value(std::move(out));
}

constexpr std::array kStringMethods{
    Row{"capitalize", [](const Call& c) { return cased(c, Case::capitalize); }},
    Row{"count", count_in, {"sub"}, 1},
    Row{"endswith", [](const Call& c) { return edge(c, false); }, {"suffix"}, 1},
    Row{"find", [](const Call& c) { return find_in(c, true); }, {"sub"}, 1},
    Row{"join", join_by, {"iterable"}, 1},
    Row{"lower", [](const Call& c) { return cased(c, Case::lower); }},
    Row{"lstrip", [](const Call& c) { return strip(c, self(c), {.left = true, .right = false}); }, {"chars"}},
    Row{"removeprefix", [](const Call& c) { return without(c, true); }, {"prefix"}, 1},
    Row{"removesuffix", [](const Call& c) { return without(c, false); }, {"suffix"}, 1},
    Row{"replace", replace, {"old", "new", "count"}, 2},
    Row{"rfind", [](const Call& c) { return find_in(c, false); }, {"sub"}, 1},
    Row{"rsplit", [](const Call& c) { return split(c, true); }, {"sep", "maxsplit"}},
    Row{"rstrip", [](const Call& c) { return strip(c, self(c), {.left = false, .right = true}); }, {"chars"}},
    Row{"split", [](const Call& c) { return split(c, false); }, {"sep", "maxsplit"}},
    Row{"startswith", [](const Call& c) { return edge(c, true); }, {"prefix"}, 1},
    Row{"strip", [](const Call& c) { return strip(c, self(c), {}); }, {"chars"}},
    Row{"title", [](const Call& c) { return cased(c, Case::title); }},
    Row{"upper", [](const Call& c) { return cased(c, Case::upper); }},
};

Value keys(const Call& call) { return Value(elements_of(call.value, call.budget)); }

Value values(const Call& call) {
  List out;
  call.budget.take(Budget::kStep * call.value.dict()->size());
  for (const auto& [key, each] : *call.value.dict()) out.push_back(each);
  return Value(std::move(out));
}

Value get(const Call& call) {
  call.budget.take(Budget::kStep * call.value.dict()->size());
  const std::string* key = call.arguments[0].string();
  const Value* found = key == nullptr ? nullptr : find(*call.value.dict(), *key);
  if (found != nullptr) return *found;
  const bool otherwise = call.all.unnamed.size() > 1 || call.given(1);
  return otherwise ? call.arguments[1] : Value(None{});
}

constexpr std::array kDictMethods{
    Row{"get", get, {"key", "default"}, 1},
    Row{"items", [](const Call& c) { return items_of(c.value, c.budget); }},
    Row{"keys", keys},
    Row{"values", values},
};

// Lists Python's methods that this interpreter does not support. Using one throws TemplateError, while any other
// unknown name gives an undefined value.
constexpr std::array<std::string_view, 27> kOtherStringMethods{
    "casefold",  "center",      "encode",  "expandtabs", "format",     "format_map",   "index",
    "isalnum",   "isalpha",     "isascii", "isdecimal",  "isdigit",    "isidentifier", "islower",
    "isnumeric", "isprintable", "isspace", "istitle",    "isupper",    "ljust",        "maketrans",
    "partition", "rindex",      "rjust",   "rpartition", "splitlines", "swapcase"};
constexpr std::array<std::string_view, 2> kMoreStringMethods{"translate", "zfill"};
constexpr std::array<std::string_view, 7> kOtherDictMethods{"clear",   "copy",       "fromkeys", "pop",
                                                            "popitem", "setdefault", "update"};
constexpr std::array<std::string_view, 11> kOtherListMethods{"append", "clear", "copy",   "count",   "extend", "index",
                                                             "insert", "pop",   "remove", "reverse", "sort"};

bool listed(Names names, std::string_view name) { return std::find(names.begin(), names.end(), name) != names.end(); }

std::span<const Row> methods_of(const Value& object) {
  if (object.string() != nullptr) return kStringMethods;
  if (object.dict() != nullptr) return kDictMethods;
  return {};
}

// --- functions

Value raise(const Call& call) { raise_error("{}", text_of(call.arguments[0])); }

Value date(const Call& call) {
  const std::string& format = call.text(0);
  // Rejects letters that mean something else in Python's strftime than in C's.
  for (const char letter : {'f', 'z', 'Z', ':'}) {
    if (format.find(std::string("%") + letter) != std::string::npos) {
      raise_error("strftime_now of '%{}' is not supported", letter);
    }
  }
  std::tm local{};
  localtime_r(&call.now, &local);
  std::array<char, 256> text{};
  const std::size_t bytes = format.empty() ? 0 : std::strftime(text.data(), text.size(), format.c_str(), &local);
  if (bytes == 0 && !format.empty()) raise_error("strftime_now of '{}' is not supported", io::printable(format));
  return Value(std::string(text.data(), bytes));
}

Value range(const Call& call) {
  constexpr std::int64_t kMost = 100000;
  const bool one = !call.given(1);
  const std::int64_t begin = one ? 0 : call.integer(0, 0), end = call.integer(one ? 0 : 1, 0),
                     step = call.integer(2, 1);
  if (step == 0) raise_error("a range with steps of 0");
  List out;
  for (std::int64_t at = begin; step > 0 ? at < end : at > end;) {
    if (static_cast<std::int64_t>(out.size()) == kMost) raise_error("a range has more than {} elements", kMost);
    call.budget.take(Budget::kStep);
    out.emplace_back(at);
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  return Value(std::move(out));
}

Value dict_of(const Call& call) {
  if (!call.all.unnamed.empty()) raise_error("the function 'dict' of another value is not supported");
  return Value(Dict(call.all.named));
}

constexpr std::array kFunctions{
    Row{.name = "dict", .run = dict_of, .any_arguments = true},
    Row{"raise_exception", raise, {"message"}, 1},
    Row{"range", range, {"start", "stop", "step"}, 1},
    Row{"strftime_now", date, {"format"}, 1},
};

constexpr std::array<std::string_view, 3> kOtherFunctions{"cycler", "joiner", "lipsum"};

/// Converts an index to a position counted from the front. A negative index counts from the end. Returns −1 if the
/// index is out of range.
std::int64_t position(std::int64_t index, std::int64_t size) {
  if (index < 0) index += size;
  return index < 0 || index >= size ? -1 : index;
}

}  // namespace

Value apply_filter(std::string_view name, const Value& value, const Arguments& arguments, Budget& budget) {
  return run(kFilters, "filter", name, value, arguments, budget);
}

bool apply_test(std::string_view name, const Value& value, const Arguments& arguments, Budget& budget) {
  return run(kTests, "test", name, value, arguments, budget).truth();
}

Value call_method(const Value& object, std::string_view name, const Arguments& arguments, Budget& budget) {
  return run(methods_of(object), "method", name, object, arguments, budget);
}

Value call_function(std::string_view name, const Arguments& arguments, std::time_t now, Budget& budget) {
  return run(kFunctions, "function", name, Value(), arguments, budget, now);
}

bool has_method(const Value& object, std::string_view name) {
  const std::span<const Row> rows = methods_of(object);
  if (std::any_of(rows.begin(), rows.end(), [name](const Row& row) { return row.name == name; })) return true;
  const bool other = object.string() != nullptr ? listed(kOtherStringMethods, name) || listed(kMoreStringMethods, name)
                     : object.dict() != nullptr ? listed(kOtherDictMethods, name)
                                                : object.list() != nullptr && listed(kOtherListMethods, name);
  if (other || name.starts_with('_')) {
    raise_error("the method '{}' of {} is not supported", io::printable(name), object.kind());
  }
  return false;
}

bool has_function(std::string_view name) {
  if (listed(kOtherFunctions, name)) raise_error("the function '{}' is not supported", name);
  return name == "namespace" ||
         std::any_of(kFunctions.begin(), kFunctions.end(), [name](const Row& row) { return row.name == name; });
}

Value attribute_of(const Value& object, std::string_view name, Budget& budget) {
  if (const Undefined* missing = object.undefined()) raise_error("'{}' is undefined", io::printable(missing->name, 80));
  if (has_method(object, name)) raise_error("the method '{}' without a call is not supported", name);
  const Dict* dict = object.space() != nullptr ? &object.space()->attributes : object.dict();
  if (dict != nullptr) budget.take(dict->size());
  const Value* found = dict == nullptr ? nullptr : find(*dict, name);
  if (found != nullptr) return *found;
  double number = 0.0;
  if (object.number(number) || object.macro() != nullptr || object.function() != nullptr) {
    raise_error("the attribute '{}' of {} is not supported", io::printable(name), object.kind());
  }
  return Value(Undefined{std::string(name)});
}

Value item_of(const Value& object, const Value& index, Budget& budget) {
  if (const Undefined* missing = object.undefined()) raise_error("'{}' is undefined", io::printable(missing->name, 80));
  if (const std::string* key = index.string()) {
    budget.take(key->size() + (object.dict() == nullptr ? 0 : object.dict()->size()));
    const Value* found = object.dict() == nullptr ? nullptr : find(*object.dict(), *key);
    return found != nullptr ? *found : attribute_of(object, *key, budget);
  }
  std::int64_t storage = 0;
  const std::int64_t* at = index.integer(storage);
  if (at != nullptr && object.list() != nullptr) {
    const std::int64_t element = position(*at, static_cast<std::int64_t>(object.list()->size()));
    if (element >= 0) return (*object.list())[static_cast<std::size_t>(element)];
  } else if (at != nullptr && object.string() != nullptr) {
    std::string_view rest = *object.string();
    budget.take(rest.size());
    std::int64_t element = position(*at, characters_in(rest));
    for (; element > 0; --element) rest.remove_prefix(first_bytes(rest));
    if (element == 0) return Value(std::string(rest.substr(0, first_bytes(rest))));
  }
  return Value(Undefined{"an element"});
}

Value slice_of(const Value& object, const Value& begin, const Value& end, const Value& step, Budget& budget) {
  const List* list = object.list();
  if (list == nullptr && object.string() == nullptr) {
    if (const Undefined* missing = object.undefined()) {
      raise_error("'{}' is undefined", io::printable(missing->name, 80));
    }
    raise_error("a slice of {} is not supported", object.kind());
  }
  const List elements = elements_of(object, budget);
  const auto size = static_cast<std::int64_t>(elements.size());
  const auto number = [](const Value& value, std::int64_t otherwise) {
    std::int64_t storage = 0;
    if (value.is_none()) return otherwise;
    const std::int64_t* integer = value.integer(storage);
    if (integer == nullptr) raise_error("a slice needs an integer, got {}", value.kind());
    return *integer;
  };
  const std::int64_t by = std::clamp<std::int64_t>(number(step, 1), -size - 1, size + 1);
  if (by == 0) raise_error("a slice with steps of 0");
  const std::int64_t lowest = by > 0 ? 0 : -1, highest = by > 0 ? size : size - 1;
  const auto bound = [&](const Value& value, std::int64_t otherwise) {
    const std::int64_t at = number(value, otherwise);
    if (value.is_none()) return at;
    return std::clamp(at < 0 ? std::max(at, -size - 1) + size : at, lowest, highest);
  };
  const std::int64_t last = bound(end, by > 0 ? size : -1);
  List out;
  for (std::int64_t at = bound(begin, by > 0 ? 0 : size - 1); by > 0 ? at < last : at > last; at += by) {
    out.push_back(elements[static_cast<std::size_t>(at)]);
  }
  if (list != nullptr) return Value(std::move(out));
  std::string text;
  for (const Value& each : out) text += *each.string();
  return Value(std::move(text));
}

}  // namespace headgate::jinja
