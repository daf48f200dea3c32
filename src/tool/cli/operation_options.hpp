// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

#include "headgate/error.hpp"
#include "library/core/dtype_words.hpp"
#include "library/core/option_rows.hpp"
#include "library/core/rows.hpp"
#include "library/core/tensor_rows.hpp"
#include "models/io/npy.hpp"
#include "tool/attend/operation.hpp"
#include "tool/cli/enum_option.hpp"
#include "tool/cli/json_option.hpp"
#include "tool/cli/threads.hpp"
#include "tool/cli/verbs.hpp"
#include "tool/console/activity.hpp"

// Declares the options of `attend` and `linear`, which run one operation on tensors in .npy files.
// Each operation has constexpr tables of its inputs, outputs, gradients and options. Each table row becomes one option.

namespace headgate::cli {

/// Parts of the --help text that `attend` and `linear` share: about files, and about environment variables.
inline constexpr const char* kFilesHelp =
    "NumPy has no bf16: with --dtype bf16, files are read as f2, f4 or f8 and rounded, and results are written as f4. "
    "Every output file appears whole, after all of them have been computed, or not at all.";
inline constexpr const char* kEnvironmentHelp =
    "Environment:\n"
    "  HEADGATE_ISA     vector target to use (`headgate info` lists them)\n"
    "  OMP_NUM_THREADS  threads to use where --threads is not given\n"
    "\n";

inline std::string text(std::string_view from) { return std::string(from); }

/// Parses "I,J,…", the value of the option named `option`, into a list of integers.
inline std::vector<std::int64_t> parse_indices(const char* option, const std::string& given) {
  std::vector<std::int64_t> indices;
  const char* const end = given.data() + given.size();
  for (const char* at = given.data(); at <= end; ++at) {
    const auto part = std::from_chars(at, end, indices.emplace_back());
    at = part.ptr;
    if (part.ec != std::errc{} || (at != end && *at != ',')) {
      throw Error(fmt::format("{} is '{}' but must be whole numbers, I,J,...", option, given));
    }
  }
  return indices;
}

/// Returns the help text of an input or output tensor.
/// `types`: the tensor's element types; empty: the text names no types.
/// `forward_only`: true if gradients cannot be computed with this tensor.
inline std::string help_of(std::string_view shape, std::string_view types, std::string_view help, bool forward_only) {
  return fmt::format("{}{}{}: {}{}", shape, types.empty() ? "" : ", ", types, help,
                     forward_only ? "; without gradients" : "");
}

/// Returns the table row of the input that `row`'s tensor requires (row.traits.needs).
template <class Tables, class Row>
const auto& needed_row(const Row& row) {
  return Tables::kInputs[row_number(Tables::kInputs, row.traits.needs)];
}

template <class Tables>
void add_inputs(VerbOptions& verb, attend::OperationFiles<Tables>& files) {
  verb.group("Inputs");
  for (std::size_t n = 0; n < Tables::kInputs.size(); ++n) {
    const auto& row = Tables::kInputs[n];
    // Names no dtypes for required inputs, because the verb's help names them.
    // Does not name bfloat16, because .npy files cannot hold it.
    const std::string_view floats = row.traits.required ? "" : "float32, float64 or float16";
    const std::string_view types = row.elements == Elements::floats ? floats : types_of(row.elements);
    std::string help = help_of(row.shape, types, row.help, row.traits.forward_only);
    if (row.traits.needs != nullptr) help += fmt::format("; needs {}", needed_row<Tables>(row).file.option);
    Option option = verb.value(text(row.file.option), files.inputs[n], text(row.file.name), help);
    if (row.traits.required) option.required();
  }
  for (const auto& row : Tables::kInputs) {
    if (row.traits.needs == nullptr) continue;
    verb.declared(text(row.file.option)).needs(verb.declared(text(needed_row<Tables>(row).file.option)));
  }
}

template <class Tables>
void add_outputs(VerbOptions& verb, attend::OperationFiles<Tables>& files) {
  verb.group("Outputs");
  for (std::size_t n = 0; n < Tables::kOutputs.size(); ++n) {
    const auto& row = Tables::kOutputs[n];
    if (row.file.option.empty()) continue;
    Option option = verb.value(text(row.file.option), files.outputs[n], text(row.file.name),
                               help_of(row.shape, output_types_of(row.elements), row.help, false));
    if (row.traits.required) option.required();
    if (row.traits.needs != nullptr) option.needs(verb.declared(text(needed_row<Tables>(row).file.option)));
  }
}

/// Declares --grad-dir and the options of the incoming gradients.
/// `remark`: a note on the names of the gradient files, shown in parentheses; empty for none.
template <class Tables>
void add_gradients(VerbOptions& verb, attend::OperationFiles<Tables>& files, const std::string& remark = "") {
  verb.group("Gradients");
  std::string names;
  for (const auto& row : Tables::kGradients) names += fmt::format("{}.npy, ", row.file.name);
  Option grad_dir = verb.value("--grad-dir", files.grad_dir, "DIR",
                               "Where to write " + names + "of the inputs that are given" +
                                   (remark.empty() ? "" : " (" + remark + ")") +
                                   ", each in the shape and dtype that its input is computed in. Made if missing (its "
                                   "parent is not)");
  for (std::size_t n = 0; n < Tables::kIncoming.size(); ++n) {
    const auto& row = Tables::kIncoming[n];
    if (row.file.option.empty()) continue;
    Option option = verb.value(text(row.file.option), files.incoming[n], text(row.file.name),
                               help_of(row.shape, types_of(row.elements), row.help, false));
    option.needs(grad_dir);
    if (row.traits.required) grad_dir.needs(option);
  }
}

inline std::string capitalised(std::string_view help) {
  std::string out(help);
  out[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(out[0])));
  return out;
}

/// Returns the help text of an option with its default value, for instance "HELP (default 0)".
/// For an enum, lists the values first: "VALUES (default VALUE); HELP".
template <class Row, class Options>
std::string help_of(const Row& row, const Options& defaults) {
  using Value = typename Row::Value;
  const std::optional<Value> value = row.of(defaults);  // if empty, row.text describes the default
  if constexpr (std::is_enum_v<Value>) {
    return fmt::format("{} (default {}); {}", list_words<Value>(), word_of(*value), row.text.help);
  } else {
    return fmt::format("{} (default {})", capitalised(row.text.help),
                       value ? fmt::format("{}", *value) : text(row.text.default_text));
  }
}

/// Declares an option for each table row that has an option name. Calls visit(row, option) after each declaration.
template <class Options, const auto& kRows, class Visit>
void add_rows(VerbOptions& verb, Given<kRows>& given, const Visit& visit) {
  const Options defaults;
  given.for_each([&](const auto& row, auto& to) {
    using Value = typename std::remove_cvref_t<decltype(row)>::Value;
    if constexpr (std::is_arithmetic_v<Value> || std::is_enum_v<Value>) {
      if (row.text.option.empty()) return;
      Option option = [&] {
        if constexpr (std::is_enum_v<Value>) {
          return declare_enum<Value>(verb, text(row.text.option), to, text(row.text.type), help_of(row, defaults));
        } else {
          return verb.value(text(row.text.option), to, text(row.text.type), help_of(row, defaults));
        }
      }();
      visit(row, option);
    }
  });
}

/// Declares --dtype and --threads. `converted` and `others` complete the help text of --dtype.
/// `converted`: names of the arrays that --dtype converts. `others`: a sentence about arrays that may have another
/// dtype.
template <const auto& kRows>
void add_execution(VerbOptions& verb, Given<kRows>& given, std::optional<DType>& dtype, const std::string& converted,
                   const std::string& others) {
  declare_enum<DType>(verb, "--dtype", dtype, "TYPE",
                      fmt::format("Compute in one of {}: {} are converted to it, and may then differ among themselves. "
                                  "Without it they must share one dtype. {}",
                                  list_words<DType>(), converted, others));
  declare_threads(verb, given.template of<&ExecutionContext::threads>(),
                  "Threads (default: all cores); the result has the same bits for every number");
}

/// Declares --json for `attend` and `linear`, which then print a list of the written files.
inline void declare_written_json(VerbOptions& verb, bool& json) {
  verb.group("Output");
  declare_json(verb, json, "one object: written, a list of the files with their path, dtype and shape,");
}

/// Prints the list of written files as JSON, with the path, dtype and shape of each.
inline void print_written(const std::vector<io::NpyWriter::Entry>& files) {
  nlohmann::ordered_json written = nlohmann::ordered_json::array();
  for (const io::NpyWriter::Entry& file : files) {
    written.push_back({{"path", file.path}, {"dtype", dtype_name(file.dtype)}, {"shape", file.shape}});
  }
  fmt::print("{}", json_text({{"written", written}}));
}

/// Reads the input arrays, passes them to compute(arrays, on_stage) and writes the results. Returns the written files.
/// compute() calls on_stage(name) when a stage begins; the name is shown as progress.
template <class Files, class Compute>
std::vector<io::NpyWriter::Entry> run_operation(const Files& files, std::optional<DType> dtype,
                                                const Compute& compute) {
  console::Activity activity("reading the arrays");
  const auto arrays = attend::read_arrays(files, dtype);
  const auto results = compute(arrays, [&activity](const char* stage) { activity.show(stage); });
  activity.show("writing the results");
  return attend::write_outputs(files, results);
}

}  // namespace headgate::cli
