// SPDX-License-Identifier: Apache-2.0
#include "models/jinja/value.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "models/jinja/text.hpp"

namespace headgate::jinja {
namespace {

int deeper(int deepest) {
  if (deepest >= Value::kMostNested) raise_error("lists and dictionaries nest more than {} deep", Value::kMostNested);
  return deepest + 1;
}

std::string text_of_real(double x) {
  if (!std::isfinite(x)) return std::isnan(x) ? "nan" : x > 0 ? "inf" : "-inf";
  std::string out = fmt::format("{}", x);
  if (out.find_first_of(".e") == std::string::npos) out += ".0";
  return out;
}

class JsonWriter {
 public:
  JsonWriter(int indent, Budget& budget) : indent_(indent), budget_(budget) {}

  void add(const Value& value) {
    budget_.take(Budget::kStep);
    std::int64_t storage = 0;
    if (value.is_none()) {
      write("null");
    } else if (const bool* boolean = value.boolean()) {
      write(*boolean ? "true" : "false");
    } else if (const std::int64_t* integer = value.integer(storage)) {
      write(std::to_string(*integer));
    } else if (const double* real = value.real()) {
      write(std::isfinite(*real) ? text_of_real(*real)
            : std::isnan(*real)  ? "NaN"
            : *real > 0          ? "Infinity"
                                 : "-Infinity");
    } else if (const std::string* text = value.string()) {
      write_string(*text);
    } else if (const List* list = value.list()) {
      add_all(*list, '[', ']', [this](const Value& each) { add(each); });
    } else if (const Dict* dict = value.dict()) {
      add_all(*dict, '{', '}', [this](const auto& entry) {
        write_string(entry.first);
        write(": ");
        add(entry.second);
      });
    } else {
      raise_error("tojson of {} is not possible", value.kind());
    }
  }
  std::string take() { return std::move(out_); }

 private:
  void write(std::string_view text) {
    budget_.take(text.size());
    out_ += text;
  }
  void write_string(std::string_view text) {
    constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b", kLetters = "\"\\nrtfb";
    write("\"");
    for (const char c : text) {
      if (const std::size_t at = kEscaped.find(c); at != std::string_view::npos) {
        write("\\");
        write(kLetters.substr(at, 1));
      } else if (static_cast<unsigned char>(c) < 0x20) {
        write(fmt::format("\\u{:04x}", static_cast<unsigned>(c)));
      } else {
        write({&c, 1});
      }
    }
    write("\"");
  }
  template <class Items, class Add>
  void add_all(const Items& items, char open, char close, const Add& add_item) {
    write({&open, 1});
    ++level_;
    bool first = true;
    for (const auto& item : items) {
      if (!first) write(indent_ < 0 ? ", " : ",");
      first = false;
      new_line();
      add_item(item);
    }
    --level_;
    if (!first) new_line();
    write({&close, 1});
  }
  void new_line() {
    if (indent_ < 0) return;
    write("\n");
    const std::size_t spaces = static_cast<std::size_t>(indent_) * static_cast<std::size_t>(level_);
    budget_.take(spaces);
    out_.append(spaces, ' ');
  }

  int indent_, level_ = 0;
  Budget& budget_;
  std::string out_;
};

bool equal_dicts(const Dict& a, const Dict& b, Budget& budget) {
  return a.size() == b.size() && std::all_of(a.begin(), a.end(), [&](const auto& entry) {
           budget.take(Budget::kStep * b.size());
           const Value* other = find(b, entry.first);
           return other != nullptr && equal(entry.second, *other, budget);
         });
}

}  // namespace

Value::Value(Undefined value) {
  constexpr std::size_t kMostBytes = 100;
  if (value.name.size() > kMostBytes) value.name = value.name.substr(0, kMostBytes);
  data_ = std::move(value);
}

Value::Value(List values) {
  int deepest = 0;
  for (const Value& each : values) deepest = std::max(deepest, each.depth_);
  depth_ = deeper(deepest);
  data_ = std::make_shared<const List>(std::move(values));
}

Value::Value(Dict values) {
  int deepest = 0;
  for (const auto& [key, each] : values) deepest = std::max(deepest, each.depth_);
  depth_ = deeper(deepest);
  data_ = std::make_shared<const Dict>(std::move(values));
}

Value::Value(Generator values) {
  int deepest = 0;
  for (const Value& each : values.left) deepest = std::max(deepest, each.depth_);
  depth_ = deeper(deepest);
  data_ = std::make_shared<Generator>(std::move(values));
}

Value Value::function(std::string_view name) {
  Value out;
  out.data_ = name;
  return out;
}

const std::int64_t* Value::integer(std::int64_t& storage) const {
  if (const bool* flag = boolean()) {
    storage = *flag ? 1 : 0;
    return &storage;
  }
  return std::get_if<std::int64_t>(&data_);
}

bool Value::number(double& out) const {
  std::int64_t storage = 0;
  if (const std::int64_t* whole = integer(storage)) {
    out = static_cast<double>(*whole);
    return true;
  }
  if (const double* value = real()) {
    out = *value;
    return true;
  }
  return false;
}

bool Value::truth() const {
  if (double x = 0.0; number(x)) return x != 0.0;
  if (const std::string* text = string()) return !text->empty();
  if (const List* values = list()) return !values->empty();
  if (const Dict* values = dict()) return !values->empty();
  return !is_undefined() && !is_none();
}

std::string_view Value::kind() const {
  constexpr std::array<std::string_view, 12> kKinds{"an undefined value", "none",     "a boolean",  "an integer",
                                                    "a number",           "a string", "a list",     "a dictionary",
                                                    "a namespace",        "a macro",  "a function", "a generator"};
  return kKinds[data_.index()];
}

const Value* find(const Dict& dict, std::string_view key) {
  const auto at = std::find_if(dict.begin(), dict.end(), [key](const auto& entry) { return entry.first == key; });
  return at == dict.end() ? nullptr : &at->second;
}

void assign(Dict& dict, std::string_view key, Value value) {
  const auto at = std::find_if(dict.begin(), dict.end(), [key](const auto& entry) { return entry.first == key; });
  if (at == dict.end()) {
    dict.emplace_back(key, std::move(value));
  } else {
    at->second = std::move(value);
  }
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.take(Budget::kStep);
  std::int64_t whole_a = 0, whole_b = 0;
  const std::int64_t *integer_a = a.integer(whole_a), *integer_b = b.integer(whole_b);
  if (integer_a != nullptr && integer_b != nullptr) return *integer_a == *integer_b;
  if (double x = 0.0, y = 0.0; a.number(x) && b.number(y)) return x == y;
  if (const std::string* x = a.string(), *y = b.string(); x != nullptr && y != nullptr) {
    if (x->size() == y->size()) budget.take(x->size());
    return *x == *y;
  }
  if (const List* x = a.list(), *y = b.list(); x != nullptr && y != nullptr) {
    return std::equal(x->begin(), x->end(), y->begin(), y->end(),
                      [&](const Value& c, const Value& d) { return equal(c, d, budget); });
  }
  if (const Dict* x = a.dict(), *y = b.dict(); x != nullptr && y != nullptr) return equal_dicts(*x, *y, budget);
  if (a.space() != nullptr || a.macro() != nullptr) return a.space() == b.space() && a.macro() == b.macro();
  if (a.generator() != nullptr) return a.generator() == b.generator();
  if (a.function() != nullptr && b.function() != nullptr) return *a.function() == *b.function();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

int compare(const Value& a, const Value& b, Budget& budget) {
  if (double x = 0.0, y = 0.0; a.number(x) && b.number(y)) {
    std::int64_t whole_a = 0, whole_b = 0;
    const std::int64_t *integer_a = a.integer(whole_a), *integer_b = b.integer(whole_b);
    if (integer_a != nullptr && integer_b != nullptr) return *integer_a < *integer_b ? -1 : *integer_a > *integer_b;
    if (std::isnan(x) || std::isnan(y)) raise_error("comparing NaN is not supported");
    return x < y ? -1 : x > y;
  }
  const std::string *x = a.string(), *y = b.string();
  if (x == nullptr || y == nullptr) raise_error("{} and {} have no order", a.kind(), b.kind());
  budget.take(std::min(x->size(), y->size()));
  return x->compare(*y);
}

bool contains(const Value& in, const Value& item, Budget& budget) {
  if (const std::string* text = in.string()) {
    const std::string* part = item.string();
    if (part == nullptr) raise_error("'in' looks for {} in a string", item.kind());
    budget.take(text->size() + part->size());
    return first_place(*text, *part) != std::string_view::npos;
  }
  if (const List* list = in.list()) {
    return std::any_of(list->begin(), list->end(), [&](const Value& each) { return equal(each, item, budget); });
  }
  if (const Dict* dict = in.dict()) {
    budget.take(Budget::kStep * dict->size());
    const std::string* key = item.string();
    return key != nullptr && find(*dict, *key) != nullptr;
  }
  if (!in.is_undefined()) raise_error("'in' looks into {}", in.kind());
  return false;
}

std::string text_of(const Value& value) {
  std::int64_t storage = 0;
  if (const std::string* text = value.string()) return *text;
  if (const bool* boolean = value.boolean()) return *boolean ? "True" : "False";
  if (const std::int64_t* integer = value.integer(storage)) return std::to_string(*integer);
  if (const double* real = value.real()) return text_of_real(*real);
  if (value.is_none()) return "None";
  if (!value.is_undefined()) raise_error("{} as text is not supported", value.kind());
  return "";
}

std::string json_of(const Value& value, int indent, Budget& budget) {
  JsonWriter writer(indent, budget);
  writer.add(value);
  return writer.take();
}

List elements_of(const Value& value, Budget& budget) {
  List out;
  if (const List* list = value.list()) {
    budget.take(Budget::kStep * list->size());
    out = *list;
  } else if (Generator* generator = value.generator()) {
    budget.take(Budget::kStep * generator->left.size());
    out.swap(generator->left);
  } else if (const Dict* dict = value.dict()) {
    budget.take(Budget::kStep * dict->size());
    for (const auto& [key, each] : *dict) out.emplace_back(key);
  } else if (const std::string* text = value.string()) {
    budget.take(Budget::kStep * text->size());
    for (std::string_view rest = *text; !rest.empty();) {
      const std::size_t bytes = first_bytes(rest);
      out.emplace_back(std::string(rest.substr(0, bytes)));
      rest.remove_prefix(bytes);
    }
  } else if (!value.is_undefined()) {
    raise_error("{} has no elements", value.kind());
  }
  return out;
}

}  // namespace headgate::jinja
