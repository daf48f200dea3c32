// SPDX-License-Identifier: Apache-2.0
#define FMT_HEADER_ONLY
#include "library/core/format.hpp"

namespace headgate {

std::string format_arguments(fmt::string_view text, fmt::format_args arguments) {
  return fmt::vformat(text, arguments);
}

}  // namespace headgate
