// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "models/generate/generate.hpp"
#include "models/tokenize/tokenizer.hpp"

// Formats the statistics that `headgate generate` reports with the generated text, such as tokens per second.

namespace headgate::cli {

/// Destination of the generated text: standard output or, with --json, the string `text`.
struct TextOutput {
  bool json = false;         ///< whether to collect the generated text in `text` instead of printing it
  std::string text{};        ///< text collected so far; stays empty without --json
  bool reader_left = false;  ///< whether the process that read standard output has closed the pipe
};

/// Returns a callback for GenerateHooks::text, which prints the generated text or collects it in `out`.
/// The callback stops the generation after a signal, or when the pipe on standard output has been closed.
/// `out` must outlive the callback.
std::function<bool(std::string_view)> text_hook(TextOutput& out);

/// Speed of one generation. Rates are in tokens per second, bandwidths in 1e9 bytes per second. The value 0 means that
/// nothing was measured.
struct GenerateFigures {
  double prompt_rate = 0.0, rate = 0.0;
  double step_bytes = 0.0;  ///< bytes of weights and cache that each generated token reads
  double read_gbps = 0.0;
  double machine_gbps = 0.0;  ///< memory read bandwidth of this machine; 0 if not measured
};

/// Computes the speed of a generation. Leaves out machine_gbps, which needs a separate measurement.
GenerateFigures figures_of(const generate::Generated& result);

/// Measures the memory read bandwidth of this machine in 1e9 bytes per second.
/// Returns the best of 6 passes, which take 0.1 to 0.2 s together.
double measure_machine_gbps(int threads);

/// Formats the statistics of a generation: prompt, generated tokens, memory bandwidth, and why the generation ended.
std::string figures_text(const generate::Generated& result, const GenerateFigures& figures,
                         const tokenize::Tokenizer& tokenizer);

/// Returns the JSON object that --json prints. `prompt_ids`: token ids of the prompt.
nlohmann::ordered_json generated_json(const std::string& model, const std::vector<std::int32_t>& prompt_ids,
                                      const generate::Generated& result, const GenerateFigures& figures,
                                      const std::string& text);

}  // namespace headgate::cli
