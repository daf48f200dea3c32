// SPDX-License-Identifier: Apache-2.0
#include "tool/cli/generate_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "headgate/runtime.hpp"
#include "models/io/units.hpp"
#include "tool/cli/signals.hpp"
#include "tool/console/console.hpp"
#include "tool/machine/machine.hpp"

namespace headgate::cli {
namespace {

using Json = nlohmann::ordered_json;

using generate::Generated;
using generate::StopReason;

std::string stop_text(const Generated& result, const tokenize::Tokenizer& tokenizer) {
  switch (result.stop) {
    case StopReason::end_token:
      return fmt::format("the model ended the text with {}", tokenizer.spelling(result.ids.back()));
    case StopReason::stop_text: return "--stop";
    case StopReason::max_tokens: return "--max-tokens";
    case StopReason::capacity: return "the model has no positions for more tokens";
    case StopReason::interrupted: return "interrupted";
  }
  return "";
}

}  // namespace

std::function<bool(std::string_view)> text_hook(TextOutput& out) {
  return [&out](std::string_view bytes) {
    if (out.json) {
      out.text += bytes;
    } else if (!bytes.empty()) {
      out.reader_left = !console::say(stdout, std::string(bytes));
    }
    return !out.reader_left && SignalWatch::received() == 0;
  };
}

GenerateFigures figures_of(const Generated& result) {
  const auto per_second = [](double count, double seconds) { return seconds > 0.0 ? count / seconds : 0.0; };
  GenerateFigures out;
  out.prompt_rate = per_second(static_cast<double>(result.prompt_tokens), result.prompt_seconds);
  out.rate = per_second(static_cast<double>(result.steps), result.step_seconds);
  if (result.steps > 0) out.step_bytes = result.step_bytes / static_cast<double>(result.steps);
  out.read_gbps = per_second(result.step_bytes * 1e-9, result.step_seconds);
  return out;
}

double measure_machine_gbps(int threads) {
  constexpr int kPasses = 6;
  bench::ReadMeter meter(active_target(), threads);
  double best = 0.0;
  for (int pass = 0; pass < kPasses; ++pass) best = std::max(best, meter.pass());
  return best;
}

std::string figures_text(const Generated& result, const GenerateFigures& figures,
                         const tokenize::Tokenizer& tokenizer) {
  std::string out = fmt::format("prompt     {} tokens, {:.1f} tokens/s\n", result.prompt_tokens, figures.prompt_rate);
  out += fmt::format("generated  {} tokens", result.ids.size());
  if (result.steps > 0) {
    out += fmt::format(", {:.1f} tokens/s, each reads {} of weights and cache", figures.rate,
                       console::bytes_text(figures.step_bytes));
  }
  out += '\n';
  if (result.guessed > 0) out += fmt::format("guessed    {} tokens, {} right\n", result.guessed, result.guessed_right);
  if (result.steps > 0 && figures.machine_gbps > 0.0) {
    out += fmt::format("memory     {:.1f} GB/s read, {:.0f}% of the {:.1f} GB/s of this machine\n", figures.read_gbps,
                       100.0 * figures.read_gbps / figures.machine_gbps, figures.machine_gbps);
  }
  return out + fmt::format("stopped    {}\n", stop_text(result, tokenizer));
}

nlohmann::ordered_json generated_json(const std::string& model, const std::vector<std::int32_t>& prompt_ids,
                                      const Generated& result, const GenerateFigures& figures,
                                      const std::string& text) {
  const auto number = [](double x) { return x > 0.0 ? Json(x) : Json(nullptr); };
  const double share = figures.machine_gbps > 0.0 ? figures.read_gbps / figures.machine_gbps : 0.0;
  return {{"model", model},
          {"text", text},
          {"ids", result.ids},
          {"stop", word_of(result.stop)},
          {"prompt_ids", prompt_ids},
          {"prompt_tokens_per_second", number(figures.prompt_rate)},
          {"tokens_per_second", number(figures.rate)},
          {"bytes_per_token", number(figures.step_bytes)},
          {"read_gbps", number(figures.read_gbps)},
          {"machine_read_gbps", number(figures.machine_gbps)},
          {"read_share", number(share)},
          {"guessed", result.guessed},
          {"guessed_right", result.guessed_right}};
}

}  // namespace headgate::cli
