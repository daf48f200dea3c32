// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>

#include "models/jinja/value.hpp"

// Built-in filters, tests, methods and functions of templates.

namespace headgate::jinja {

struct Arguments {
  List unnamed;
  Dict named;
};

// These functions run a built-in by its name. If they do not support it or one of its arguments, they throw Refusal,
// which names the built-in.
Value apply_filter(std::string_view name, const Value& value, const Arguments& arguments, Budget& budget);
bool apply_test(std::string_view name, const Value& value, const Arguments& arguments, Budget& budget);
Value call_method(const Value& object, std::string_view name, const Arguments& arguments, Budget& budget);
/// Runs a built-in function. `now` is the time for strftime_now().
Value call_function(std::string_view name, const Arguments& arguments, std::time_t now, Budget& budget);

/// Returns whether call_method() supports this method of an object. Throws Refusal if only Python supports it.
bool has_method(const Value& object, std::string_view name);
/// Returns whether a template may call this function. Throws Refusal if only Jinja supports it.
bool has_function(std::string_view name);

/// Returns the attribute `name` of `object`, or Undefined if there is none. Throws Refusal if `object` is Undefined, if
/// `name` is one of its methods, or if attributes of its type are not supported.
Value attribute_of(const Value& object, std::string_view name, Budget& budget);
/// Returns object[index], or Undefined if there is no such item. Throws Refusal if `object` is Undefined.
Value item_of(const Value& object, const Value& index, Budget& budget);
/// Returns object[begin:end:step]. An omitted bound or step is None.
Value slice_of(const Value& object, const Value& begin, const Value& end, const Value& step, Budget& budget);

}  // namespace headgate::jinja
