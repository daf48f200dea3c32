// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <omp.h>
#include <strings.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "headgate/runtime.hpp"
#include "models/io/units.hpp"
#include "models/train/memory.hpp"
#include "tool/cli/facts.hpp"
#include "tool/cli/json_option.hpp"
#include "tool/cli/verbs.hpp"
#include "tool/machine/machine.hpp"

namespace headgate::cli {
namespace {

using Json = nlohmann::ordered_json;

/// Returns the value of an environment variable, or nothing if it is unset or empty.
std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? std::nullopt : std::optional<std::string>(value);
}

/// Returns advice if HEADGATE_ISA selects a target slower than this CPU's best one, otherwise an empty string.
/// `value` is the value of HEADGATE_ISA.
std::string advice_on_isa(const std::string& value) {
  const std::string best = supported_targets().front();
  if (active_target() == best) return "";
  return fmt::format("HEADGATE_ISA={} keeps the kernels from {}, the best target of this CPU: unset it", value, best);
}

std::string advice_on_verbose(const std::string& value) {
  if (value == "0") return "";
  return fmt::format("HEADGATE_VERBOSE={} prints a line for each call on stderr: unset it to measure", value);
}

std::string advice_on_onednn(const std::string& value) {
  return fmt::format("ONEDNN_MAX_CPU_ISA={} limits the instructions of matrix products ({} now): unset it", value,
                     bench::products_description());
}

std::string advice_on_coretype(const std::string& value) {
  const std::string products = bench::products_description();
  if (products.starts_with("OpenBLAS")) {
    return fmt::format("OPENBLAS_CORETYPE={} sets the kernels of matrix products, whatever CPU this is: unset it",
                       value);
  }
  return fmt::format(
      "OPENBLAS_CORETYPE={} does nothing here, where the matrix products are {}; it slows NumPy down "
      "if it names another CPU",
      value, products);
}

std::string advice_on_waiting(const std::string& value) {
  if (value != "PASSIVE" && value != "passive") return "";
  return fmt::format(
      "OMP_WAIT_POLICY={} makes threads sleep between loops, which costs time in small calls: unset it, "
      "or set GOMP_SPINCOUNT=10000 instead where other programs need the cores",
      value);
}

std::string advice_on_dynamic(const std::string& value) {
  if (::strcasecmp(value.c_str(), "true") != 0 && value != "1") return "";
  return fmt::format("OMP_DYNAMIC={} lets OpenMP use fewer threads where the machine is busy: unset it", value);
}

std::string no_advice(const std::string& /*value*/) { return ""; }

/// An environment variable that affects speed or output.
/// advice(value) returns advice on the variable's value, or an empty string.
struct Variable {
  const char* name;
  std::string (*advice)(const std::string& value);
};

constexpr std::array<Variable, 11> kVariables{{
    {"GOMP_SPINCOUNT", no_advice},  // see advice_on_load()
    {"HEADGATE_ISA", advice_on_isa},
    {"HEADGATE_VERBOSE", advice_on_verbose},
    {"OMP_NUM_THREADS", no_advice},  // see advice_on_threads()
    {"OMP_THREAD_LIMIT", no_advice},
    {"OMP_DYNAMIC", advice_on_dynamic},
    {"OMP_PROC_BIND", no_advice},
    {"OMP_PLACES", no_advice},
    {"OMP_WAIT_POLICY", advice_on_waiting},
    {"ONEDNN_MAX_CPU_ISA", advice_on_onednn},
    {"OPENBLAS_CORETYPE", advice_on_coretype},
}};

std::string advice_on_threads(int threads, int cores) {
  if (threads < cores) {
    return fmt::format("calls use {} of {} cores: unset OMP_NUM_THREADS, or pass --threads {}", threads, cores, cores);
  }
  if (threads > cores) {
    return fmt::format("{} threads share {} cores, and wait for each other: set OMP_NUM_THREADS={}", threads, cores,
                       cores);
  }
  return "";
}

/// Returns advice if this build does not contain `best`, the best vector target for this CPU.
/// Returns an empty string if the build contains it.
std::string advice_on_target(const std::string& best) {
  const std::vector<std::string> compiled = compiled_targets();
  if (std::find(compiled.begin(), compiled.end(), best) != compiled.end()) return "";
  return fmt::format("this build lacks {}, the best vector target of this CPU: build with HEADGATE_VECTOR_TARGETS=all",
                     best);
}

/// Returns the load average of the last minute: the mean number of threads that ran or waited for a core.
/// Returns nothing if the system does not report it.
std::optional<double> load_of_machine() {
  double load = 0.0;
  return ::getloadavg(&load, 1) == 1 ? std::optional(load) : std::nullopt;
}

std::string advice_on_load(double load, int cores) {
  constexpr double kBusy = 0.5;  // load average per core from which a machine counts as busy
  if (cores < 2 || load < kBusy * cores || variable("GOMP_SPINCOUNT") || variable("OMP_WAIT_POLICY")) return "";
  return fmt::format(
      "{:.1f} threads ran on {} cores in the last minute: beside other programs set GOMP_SPINCOUNT=10000 for Python "
      "and "
      "programs of your own, so that threads that wait leave them the cores; train, eval, xray, generate and demo do",
      load, cores);
}

std::vector<Fact> doctor_facts(int cores, std::optional<double> load) {
  std::vector<Fact> out = machine_facts();
  out.push_back({"cores", cores});
  if (const auto bytes = train::available_memory()) {
    out.push_back({"memory available", *bytes, console::bytes_text(static_cast<double>(*bytes))});
  } else {
    out.push_back({"memory available", nullptr, "unknown"});
  }
  out.push_back({"load", load ? Json(*load) : Json(), load ? fmt::format("{:.2f}", *load) : "unknown"});
  Json environment = Json::object();
  std::string shown;
  for (const Variable& each : kVariables) {
    const std::optional<std::string> value = variable(each.name);
    if (!value) continue;
    environment[each.name] = *value;
    shown += fmt::format("{}{}={}", shown.empty() ? "" : " ", each.name, *value);
  }
  out.push_back({"environment", environment, shown.empty() ? "no variable that matters is set" : shown});
  return out;
}

std::vector<std::string> advice(int cores, std::optional<double> load) {
  std::vector<std::string> out;
  const auto add = [&out](std::string line) {
    if (!line.empty()) out.push_back(std::move(line));
  };
  for (const Variable& each : kVariables) {
    if (const std::optional<std::string> value = variable(each.name)) add(each.advice(*value));
  }
  add(advice_on_threads(default_threads(), cores));
  if (load) add(advice_on_load(*load, cores));
  add(advice_on_target(bench::best_target()));
  return out;
}

int run_doctor(bool json) {
  const int cores = omp_get_num_procs();  // number of cores that this process may use
  const std::optional<double> load = load_of_machine();
  const std::vector<Fact> facts = doctor_facts(cores, load);
  const std::vector<std::string> lines = advice(cores, load);
  if (json) {
    Json object = fact_object(facts);
    object["advice"] = lines;
    fmt::print("{}", json_text(object));
    return kSuccess;
  }
  fmt::print("{}", fact_lines(facts));
  for (const std::string& line : lines) fmt::print("{:<18} {}\n", "advice", line);
  return kSuccess;
}

}  // namespace

Verb add_doctor(CommandLine& line) {
  VerbOptions verb = line.add_verb(
      "doctor",
      "Say what this machine will run, and what would make it faster\n\n"
      "Prints the facts of `headgate info`, the cores that this process may use, the memory that is free, how busy "
      "the machine is, and the environment variables that matter. Lines of advice follow where a variable or the build "
      "keeps the machine from its best.");
  auto json = std::make_shared<bool>(false);
  declare_json(verb, *json, "one object");
  verb.footer(
      "JSON output: the keys of `headgate info --json`, and\n"
      "  cores             a number\n"
      "  memory_available  bytes, swap and limits of the process's group included;\n"
      "                    null where the system does not say\n"
      "  load              threads of the machine that ran or waited for a core, the\n"
      "                    mean of the last minute; null where unknown\n"
      "  environment       an object of the variables that are set\n"
      "  advice            a list of strings\n"
      "\n"
      "Examples:\n"
      "  headgate doctor\n"
      "  OMP_NUM_THREADS=1 headgate doctor --json");
  return {"doctor", [json] { return run_doctor(*json); }};
}

}  // namespace headgate::cli
