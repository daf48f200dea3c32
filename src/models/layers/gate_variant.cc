// SPDX-License-Identifier: Apache-2.0
#include "models/layers/gate_variant.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>

#include "library/core/check.hpp"

namespace headgate::layers {

namespace {

/// Returns `text` with '_' in place of '-'. Both spellings are accepted, for example head-shared and head_shared.
std::string underscored(std::string_view text) {
  std::string out(text);
  for (char& letter : out) {
    if (letter == '-') letter = '_';
  }
  return out;
}

/// Finds the longest name of an Enum value at the beginning of `text`. The end of `text` or '_' must follow the name.
/// Ignores the name "none".
template <typename Enum>
std::optional<Word<Enum>> leading_word(std::string_view text) {
  std::optional<Word<Enum>> best;
  for (const auto& entry : Words<Enum>::kAll) {
    const std::size_t length = entry.word.size();
    if (entry.word == "none" || text.substr(0, length) != entry.word) continue;
    if (text.size() > length && text[length] != '_') continue;
    if (!best || best->word.size() < length) best = entry;
  }
  return best;
}

template <typename Enum>
bool take(std::string_view& text, Enum& value, bool& taken) {
  const auto word = leading_word<Enum>(text);
  if (!word) return false;
  require(!taken, "gate: '{}' is a second word for what '{}' says", word->word, word_of(value));
  taken = true;
  value = word->value;
  text.remove_prefix(std::min(text.size(), word->word.size() + 1));
  return true;
}

template <typename Enum>
std::string words_but_none() {
  std::string out;
  for (const Word<Enum>& row : Words<Enum>::kAll) {
    if (row.word == "none") continue;
    if (!out.empty()) out += ' ';
    out += row.word;
  }
  return out;
}

std::string gate_help() {
  return fmt::format("none, or words of: {}; {}; {}; {}; parameter; bias; {}; {}", words_but_none<GateSite>(),
                     words_but_none<GateGrain>(), words_but_none<GateFn>(), words_but_none<GateOp>(),
                     words_but_none<OutputControl>(), words_but_none<SinkKind>());
}

}  // namespace

void validate(const GateVariant& variant) {
  if (!has_gate(variant)) {
    require(variant.bias == GateBias::none, "gate_bias: a bias needs a gate");
    return;
  }
  require(variant.fn != GateFn::none, "gate_fn: site {} needs a gate function", word_of(variant.site));
  require(variant.output_control == OutputControl::none,
          "attention_output_control: {} is a control for a layer without a gate, not with {}",
          word_of(variant.output_control), word_of(variant.site));
  const GateSiteRow& site = *find_site(variant.site);
  require(site.heads != GateHeads::none || variant.grain != GateGrain::head_shared,
          "gate_grain: {} ({}) has no heads to share a gate", site.acts_on, site.word);
  require(variant.source == GateSource::input || variant.bias == GateBias::none,
          "gate_bias: an input-independent gate is a bias already");
}

std::string gate_name(const GateVariant& variant) {
  std::string name;
  const auto append = [&name](std::string_view word) {
    if (!name.empty()) name += '-';
    name += word;
  };
  if (has_gate(variant)) {
    append(word_of(variant.site));
    append(word_of(variant.grain));
    append(word_of(variant.fn));
    append(word_of(variant.op));
    if (variant.source != GateSource::input) append(word_of(variant.source));
    if (variant.bias != GateBias::none) append(word_of(variant.bias));
  }
  if (variant.output_control != OutputControl::none) append(word_of(variant.output_control));
  if (variant.sinks != SinkKind::none) append(word_of(variant.sinks));
  return name.empty() ? "none" : name;
}

GateVariant parse_gate(std::string_view name) {
  GateVariant variant;
  const std::string text = underscored(name);
  if (text == "none") return variant;
  std::string_view rest = text;
  bool site = false, grain = false, source = false, fn = false, op = false, bias = false, control = false,
       sinks = false;
  while (!rest.empty()) {
    const bool known = take(rest, variant.site, site) || take(rest, variant.grain, grain) ||
                       take(rest, variant.source, source) || take(rest, variant.fn, fn) || take(rest, variant.op, op) ||
                       take(rest, variant.bias, bias) || take(rest, variant.output_control, control) ||
                       take(rest, variant.sinks, sinks);
    require(known, "gate '{}': unknown part '{}'; {}", name, rest, gate_help());
  }
  require(!text.empty(), "gate: no name; {}", gate_help());
  if (!site && (grain || source || fn || op || bias)) variant.site = GateSite::g1;
  validate(variant);
  return variant;
}

}  // namespace headgate::layers
