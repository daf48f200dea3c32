// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>

#include "models/jinja/value.hpp"

// Renders chat templates. Supports the part of Jinja that they use, with the settings of transformers.

namespace headgate::jinja {

struct Node;

struct RenderOptions {
  std::time_t now = 0;  ///< time that strftime_now() formats, in local time
  /// Limit of the computation of render(): about 16 units for each step and 1 for each byte of a string.
  std::size_t budget = std::size_t{1} << 28;
};

class Template {
 public:
  /// Parses a template. Throws Error for invalid syntax and for unsupported tags. The message is one line with "chat
  /// template, line N".
  explicit Template(std::string_view text);
  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;

  /// Returns the text that the template outputs. Throws Error if the template raises an exception, if an operation
  /// would fail in Python, or if it is not supported. The message has the form of the constructor's.
  std::string render(const Dict& variables, const RenderOptions& options) const;

 private:
  std::unique_ptr<const Node> root_;
};

}  // namespace headgate::jinja
