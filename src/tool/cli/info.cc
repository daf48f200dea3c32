// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "headgate/runtime.hpp"
#include "tool/cli/json_option.hpp"
#include "tool/cli/verbs.hpp"
#include "tool/machine/machine.hpp"

namespace headgate::cli {
namespace {

using Json = nlohmann::ordered_json;

/// A fact that `headgate info` prints: a line of text, or a value of the JSON object.
struct Fact {
  std::string label;
  Json value;             ///< a string, a number, a list of strings, or null
  std::string if_null{};  ///< text in place of null

  /// Returns the label with '_' for spaces.
  std::string key() const {
    std::string out = label;
    std::replace(out.begin(), out.end(), ' ', '_');
    return out;
  }
  std::string text() const {
    if (value.is_null()) return if_null;
    if (value.is_array()) return fmt::format("{}", fmt::join(value.get<std::vector<std::string>>(), " "));
    return value.is_string() ? value.get<std::string>() : value.dump();
  }
};

/// Throws Error if HEADGATE_ISA names a target that is not supported.
std::vector<Fact> facts() {
  const std::string products = native16_products();
  return {
      {"version", version()},
      {"cpu", bench::cpu_name()},
      {"backends", supported_backends()},
      {"targets compiled", compiled_targets()},
      {"targets supported", supported_targets()},
      {"target chosen", active_target()},
      {"native16 products", products.empty() ? Json(nullptr) : Json(products), "none: native16 computes as exact"},
      {"threads", default_threads()},
      {"matrix products", bench::products_description()},
  };
}

int run_info(bool json) {
  Json object;
  std::string lines;
  for (const Fact& fact : facts()) {
    object[fact.key()] = fact.value;
    lines += fmt::format("{:<18} {}\n", fact.label, fact.text());
  }
  fmt::print("{}", json ? object.dump(2, ' ', false, Json::error_handler_t::replace) + '\n' : lines);
  return kSuccess;
}

}  // namespace

Verb add_info(CommandLine& line) {
  VerbOptions verb = line.add_verb(
      "info",
      "Print the version, the CPU, vector targets, 16-bit products, threads, and what multiplies matrices\n\n"
      "One fact a line: the version; the CPU's name; the vector targets in this build, those of them that this CPU can "
      "run, and the one that kernels use, best first; what `--precision native16` multiplies with; the threads that a "
      "call uses by default; and the "
      "library that multiplies the matrices of models, with its kernels (attention itself uses none).");
  auto json = std::make_shared<bool>(false);
  declare_json(verb, *json, "one object");
  verb.footer(
      "JSON output, the facts above in their order:\n"
      "  version, cpu, target_chosen        strings\n"
      "  backends, targets_compiled,\n"
      "  targets_supported                  lists of strings\n"
      "  native16_products                  a string; null where native16 computes as\n"
      "                                     exact\n"
      "  threads                            a number\n"
      "  matrix_products                    a string\n"
      "\n"
      "Environment:\n"
      "  HEADGATE_ISA     vector target to use, one of those supported\n"
      "  OMP_NUM_THREADS  threads to use by default");
  return {"info", [json] { return run_info(*json); }};
}

}  // namespace headgate::cli
