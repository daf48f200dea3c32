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

// What `headgate generate` says of a text or an answer, beside it.

namespace headgate::cli {

/// Where the bytes of a text go as they come.
struct TextOutput {
  bool json = false;         ///< print nothing: keep them in `text` for generated_json()
  std::string text{};        ///< empty without `json`
  bool reader_left = false;  ///< standard output is closed
};

/// Returns GenerateHooks::text, which ends the text when the reader has left or a signal has come. `out` has to live as
/// long.
std::function<bool(std::string_view)> text_hook(TextOutput& out);

/// Holds the figures of a run. Rates are in tokens and in 1e9 bytes a second; 0 if nothing was timed.
struct GenerateFigures {
  double prompt_rate = 0.0, rate = 0.0;
  double step_bytes = 0.0;  ///< bytes read for a generated token
  double read_gbps = 0.0;
  double machine_gbps = 0.0;  ///< what this machine reads from memory; 0: not measured
};

/// Returns the figures of a run, without machine_gbps.
GenerateFigures figures_of(const generate::Generated& result);

/// Measures what this machine reads from memory: the best of a few passes, which take a tenth of a second or two.
double measure_machine_gbps(int threads);

/// Returns a line each of the prompt, the generated text, memory and why the text ended.
std::string figures_text(const generate::Generated& result, const GenerateFigures& figures,
                         const tokenize::Tokenizer& tokenizer);

/// Returns what --json prints. `prompt_ids`: the tokens that were asked with.
nlohmann::ordered_json generated_json(const std::string& model, const std::vector<std::int32_t>& prompt_ids,
                                      const generate::Generated& result, const GenerateFigures& figures,
                                      const std::string& text);

}  // namespace headgate::cli
