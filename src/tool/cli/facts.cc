// SPDX-License-Identifier: Apache-2.0
#include "tool/cli/facts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "headgate/runtime.hpp"
#include "tool/machine/machine.hpp"

namespace headgate::cli {

using Json = nlohmann::ordered_json;

std::string Fact::key() const {
  std::string out = label;
  std::replace(out.begin(), out.end(), ' ', '_');
  return out;
}

std::string Fact::text() const {
  if (!shown.empty()) return shown;
  if (value.is_array()) return fmt::format("{}", fmt::join(value.get<std::vector<std::string>>(), " "));
  return value.is_string() ? value.get<std::string>() : value.dump();
}

const std::vector<MachineFact>& machine_fact_rows() {
  static const std::vector<MachineFact> rows{
      {"version", "the version", "a string", [] { return Json(version()); }},
      {"cpu", "the CPU's name", "a string", [] { return Json(bench::cpu_name()); }},
      {"backends", "the backends for attention in this build, best first", "a list of strings",
       [] { return Json(supported_backends()); }},
      {"targets compiled", "the vector targets in this build, best first", "a list of strings",
       [] { return Json(compiled_targets()); }},
      {"targets supported", "those of them that this CPU can run", "a list of strings",
       [] { return Json(supported_targets()); }},
      {"target chosen", "the one that kernels use", "a string", [] { return Json(active_target()); }},
      {"native16 products", "what `--precision native16` multiplies with", "a string; null: native16 computes as exact",
       [] {
         const std::string products = native16_products();
         return products.empty() ? Json(nullptr) : Json(products);
       },
       "none: native16 computes as exact"},
      {"threads", "the threads that a call uses by default", "a number", [] { return Json(default_threads()); }},
      {"matrix products",
       "the library that multiplies the matrices of models, with its kernels (attention itself uses none)", "a string",
       [] { return Json(bench::products_description()); }},
  };
  return rows;
}

std::vector<Fact> machine_facts() {
  std::vector<Fact> out;
  for (const MachineFact& row : machine_fact_rows()) {
    Json value = row.value();
    std::string shown = value.is_null() ? row.text_if_null : "";
    out.push_back({row.label, std::move(value), std::move(shown)});
  }
  return out;
}

std::string fact_lines(const std::vector<Fact>& facts) {
  std::string out;
  for (const Fact& fact : facts) out += fmt::format("{:<18} {}\n", fact.label, fact.text());
  return out;
}

Json fact_object(const std::vector<Fact>& facts) {
  Json out;
  for (const Fact& fact : facts) out[fact.key()] = fact.value;
  return out;
}

}  // namespace headgate::cli
