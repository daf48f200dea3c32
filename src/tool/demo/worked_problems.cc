// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <exception>

#include "tool/demo/worked.hpp"

// Prints the worked problems, which are the first part of `headgate demo`.
// The argument is their directory, by default "examples".

int main(int argc, char** argv) {
  try {
    return headgate::demo::show_worked_problems(argc > 1 ? argv[1] : "examples") ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    return 2;
  }
}
