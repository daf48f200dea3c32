// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>

#include "models/jinja/value.hpp"

// Filters, tests, methods and functions of templates, a row each.

namespace headgate::jinja {

struct Arguments {
  List unnamed;
  Dict named;
};

// Throw Refusal, which names what is asked for, if it is not supported or its arguments are not.
Value apply_filter(std::string_view name, const Value& value, const Arguments& arguments, Budget& budget);
bool apply_test(std::string_view name, const Value& value, const Arguments& arguments, Budget& budget);
Value call_method(const Value& object, std::string_view name, const Arguments& arguments, Budget& budget);
/// `now`: for strftime_now.
Value call_function(std::string_view name, const Arguments& arguments, std::time_t now, Budget& budget);

/// Returns whether call_method has the name for an object. Throws Refusal if only Python has it.
bool has_method(const Value& object, std::string_view name);
/// Returns whether call_function has the name. Throws Refusal if only Jinja has it.
bool has_function(std::string_view name);

/// Returns object.name, or an undefined value. Throws Refusal for an undefined object and for methods.
Value attribute_of(const Value& object, std::string_view name);
/// Returns object[index], or an undefined value.
Value item_of(const Value& object, const Value& index);
/// Returns object[begin:end:step]. None stands for what is left out.
Value slice_of(const Value& object, const Value& begin, const Value& end, const Value& step, Budget& budget);

}  // namespace headgate::jinja
