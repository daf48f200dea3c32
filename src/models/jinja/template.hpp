// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>

#include "models/jinja/value.hpp"

// Renders chat templates. Supports the part of Jinja that chat templates use, with transformers' settings.

namespace headgate::jinja {

struct Node;

struct RenderOptions {
  std::time_t now = 0;  ///< time that strftime_now() formats, converted to local time
  /// Maximum work of render(), in units. A step costs about 16 units, and a byte of a string costs 1.
  std::size_t budget = std::size_t{1} << 28;
};

class Template {
 public:
  /// Parses a template. Throws Error for invalid syntax and for unsupported tags. The message is one line that begins
  /// with "chat template, line N".
  explicit Template(std::string_view text);
  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;

  /// Returns the text that the template outputs. Throws Error if the template raises an exception, if Python would
  /// raise one, or if an operation is not supported. The message is one line that begins with "chat template, line N".
  std::string render(const Dict& variables, const RenderOptions& options) const;

 private:
  std::unique_ptr<const Node> root_;
};

}  // namespace headgate::jinja
