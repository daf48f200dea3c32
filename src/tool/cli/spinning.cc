// SPDX-License-Identifier: Apache-2.0
#include "tool/cli/spinning.hpp"

#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <string>

namespace headgate::cli {

void spin_less(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  // Resolves /proc/self/exe before executing it: otherwise ps would show the name "exe".
  std::string program(PATH_MAX, '\0');
  const ssize_t length = ::readlink("/proc/self/exe", program.data(), program.size());
  if (length <= 0 || length == PATH_MAX) return;
  program.resize(static_cast<std::size_t>(length));
  if (::setenv("GOMP_SPINCOUNT", "10000", /*overwrite=*/0) != 0) return;
  ::execv(program.c_str(), argv);
  // Reached only if execv() failed. This process has not used the variable: libgomp reads it before main().
  ::unsetenv("GOMP_SPINCOUNT");
}

}  // namespace headgate::cli
