// SPDX-License-Identifier: Apache-2.0
#include "models/train/thread_limit.hpp"

#include <fmt/format.h>
#include <omp.h>

#include <charconv>

#include "headgate/runtime.hpp"

namespace headgate::train {

std::string thread_complaint(const std::string& number) {
  int value = 0;
  const char* end = number.data() + number.size();
  const auto read = std::from_chars(number.data(), end, value);
  if (read.ec == std::errc::result_out_of_range && read.ptr == end && !number.starts_with('-')) {
    value = max_threads() + 1;
  } else if (read.ec != std::errc{} || read.ptr != end || value < 1) {
    return fmt::format("'{}' is not a whole number from 1 on", number);
  }
  if (value <= max_threads()) return "";
  const int processors = omp_get_num_procs();
  return fmt::format("{} threads on {} processor{} would wait for each other: at most {}", number, processors,
                     processors == 1 ? "" : "s", max_threads());
}

}  // namespace headgate::train
