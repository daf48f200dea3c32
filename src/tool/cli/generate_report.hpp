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

// Formats the figures that `headgate generate` reports beside the generated text.

namespace headgate::cli {

/// Destination of the generated text: standard output, or `text` with --json.
struct TextOutput {
  bool json = false;         ///< collects the bytes in `text` for generated_json() instead of printing them
  std::string text{};        ///< collected bytes; empty without `json`
  bool reader_left = false;  ///< true once standard output is closed
};

/// Returns a callback for GenerateHooks::text that prints the text or collects it in `out`. The callback ends the text
/// after a signal or once standard output is closed. `out` must outlive the callback.
std::function<bool(std::string_view)> text_hook(TextOutput& out);

/// Figures of one generated text. Rates are in tokens per second, bandwidths in 1e9 bytes per second; 0 if nothing was
/// timed.
struct GenerateFigures {
  double prompt_rate = 0.0, rate = 0.0;
  double step_bytes = 0.0;  ///< bytes of weights and cache read per generated token
  double read_gbps = 0.0;
  double machine_gbps = 0.0;  ///< memory read bandwidth of this machine; 0: not measured
};

/// Computes the figures of a generated text, except machine_gbps.
GenerateFigures figures_of(const generate::Generated& result);

/// Measures the memory read bandwidth in 1e9 bytes per second: the best of a few passes, 0.1 to 0.2 s together.
double measure_machine_gbps(int threads);

/// Formats lines on the prompt, the generated text, the memory bandwidth and the reason why the text ended.
std::string figures_text(const generate::Generated& result, const GenerateFigures& figures,
                         const tokenize::Tokenizer& tokenizer);

/// Returns the object that --json prints. `prompt_ids`: ids of the prompt's tokens.
nlohmann::ordered_json generated_json(const std::string& model, const std::vector<std::int32_t>& prompt_ids,
                                      const generate::Generated& result, const GenerateFigures& figures,
                                      const std::string& text);

}  // namespace headgate::cli
