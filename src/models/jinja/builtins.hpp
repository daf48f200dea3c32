// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>

#include "models/jinja/value.hpp"

// Declares the built-in filters, tests, methods and functions of templates.

namespace headgate::jinja {

struct Arguments {
  List unnamed;
  Dict named;
};

// These functions run the built-in `name`. They throw TemplateError, which names the built-in, if it or one of its
// arguments is not supported.
Value apply_filter(std::string_view name, const Value& value, const Arguments& arguments, Budget& budget);
bool apply_test(std::string_view name, const Value& value, const Arguments& arguments, Budget& budget);
Value call_method(const Value& object, std::string_view name, const Arguments& arguments, Budget& budget);
/// Runs a built-in function. strftime_now() formats the time `now`.
Value call_function(std::string_view name, const Arguments& arguments, std::time_t now, Budget& budget);

/// Returns whether call_method() supports the method `name` of `object`. Throws TemplateError for a method that exists
/// only in Python.
bool has_method(const Value& object, std::string_view name);
/// Returns whether a template may call the function `name`. Throws TemplateError for a function of Jinja that this
/// interpreter does not support.
bool has_function(std::string_view name);

/// Returns the attribute `name` of `object`, or Undefined if there is none. Throws TemplateError in these cases:
/// - `object` is Undefined.
/// - `name` is a method of `object`.
/// - The interpreter supports no attributes for objects of this type.
Value attribute_of(const Value& object, std::string_view name, Budget& budget);
/// Returns object[index], or Undefined if the item does not exist. Throws TemplateError if `object` is Undefined.
Value item_of(const Value& object, const Value& index, Budget& budget);
/// Returns object[begin:end:step]. A bound or step that the template omits is None.
Value slice_of(const Value& object, const Value& begin, const Value& end, const Value& step, Budget& budget);

}  // namespace headgate::jinja
