// SPDX-License-Identifier: Apache-2.0
#include "tool/cli/facts.hpp"

#include <fmt/format.h>

#include <algorithm>

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

std::vector<Fact> machine_facts() {
  const std::string products = native16_products();
  return {
      {"version", version()},
      {"cpu", bench::cpu_name()},
      {"backends", supported_backends()},
      {"targets compiled", compiled_targets()},
      {"targets supported", supported_targets()},
      {"target chosen", active_target()},
      {"native16 products", products.empty() ? Json(nullptr) : Json(products),
       products.empty() ? "none: native16 computes as exact" : ""},
      {"threads", default_threads()},
      {"matrix products", bench::products_description()},
  };
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
