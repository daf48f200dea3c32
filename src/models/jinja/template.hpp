// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>

#include "models/jinja/value.hpp"

// Renders chat templates: the part of Jinja that they use, as transformers sets it up.

namespace headgate::jinja {

struct Node;

struct RenderOptions {
  std::time_t now = 0;  ///< for strftime_now, in local time
  /// Bounds what rendering computes: about 16 for each step and 1 for each byte of a string.
  std::size_t budget = std::size_t{1} << 28;
};

class Template {
 public:
  /// Throws Error, one line with "chat template, line N", for text that is no template and for tags that are not
  /// supported.
  explicit Template(std::string_view text);
  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;

  /// Returns the text that the template writes. Throws Error as above for what the template raises, for operations
  /// that fail in Python, and for those that are not supported.
  std::string render(const Dict& variables, const RenderOptions& options) const;

 private:
  std::unique_ptr<const Node> root_;
};

}  // namespace headgate::jinja
