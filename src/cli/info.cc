// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <string>
#include <vector>

#include "bench/machine.hpp"
#include "cli/verbs.hpp"
#include "headgate/error.hpp"
#include "headgate/runtime.hpp"

namespace headgate::cli {
namespace {

/// What multiplies matrices, or why nothing does.
std::string blas_text() {
  try {
    return bench::blas_description();
  } catch (const Error& error) {
    return fmt::format("none: {}", error.what());
  }
}

int run_info() {
  // active_target() may throw (HEADGATE_ISA), so it is called before anything is printed.
  const std::string chosen = active_target();
  fmt::print("version            {}\n", version());
  fmt::print("cpu                {}\n", bench::cpu_name());
  fmt::print("backends           {}\n", fmt::join(supported_backends(), " "));
  fmt::print("targets compiled   {}\n", fmt::join(compiled_targets(), " "));
  fmt::print("targets supported  {}\n", fmt::join(supported_targets(), " "));
  fmt::print("target chosen      {}\n", chosen);
  const std::string products = native16_products();
  fmt::print("native16 products  {}\n", products.empty() ? "none: native16 computes as exact" : products);
  fmt::print("threads            {}\n", default_threads());
  fmt::print("blas               {}\n", blas_text());
  return kSuccess;
}

}  // namespace

Verb add_info(CommandLine& line) {
  VerbOptions verb = line.add_verb(
      "info",
      "Print the version, the CPU, vector targets, 16-bit products, threads and BLAS\n\n"
      "One fact a line: the version; the CPU's name; the vector targets in this build, those of them that this CPU can "
      "run, and the one that kernels use, best first; what `--precision native16` multiplies with; the threads that a "
      "call uses by default; and the BLAS that "
      "`headgate bench` measures against (attention itself uses none).");
  verb.footer(
      "Environment:\n"
      "  HEADGATE_ISA     vector target to use, one of those supported\n"
      "  OMP_NUM_THREADS  threads to use by default");
  return {"info", run_info};
}

}  // namespace headgate::cli
