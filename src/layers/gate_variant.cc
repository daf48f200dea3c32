// SPDX-License-Identifier: Apache-2.0
#include "layers/gate_variant.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <optional>

#include "core/check.hpp"

namespace headgate::layers {

namespace {

template <typename Enum>
struct Word {
  std::string_view word;
  Enum value;
};

template <typename Enum>
struct Words;

template <>
struct Words<GateSite> {
  static constexpr std::array<Word<GateSite>, 6> kAll{{{"none", GateSite::none},
                                                       {"g1", GateSite::g1},
                                                       {"g2", GateSite::g2},
                                                       {"g3", GateSite::g3},
                                                       {"g4", GateSite::g4},
                                                       {"g5", GateSite::g5}}};
};

template <>
struct Words<GateGrain> {
  static constexpr std::array<Word<GateGrain>, 3> kAll{{{"headwise", GateGrain::headwise},
                                                        {"elementwise", GateGrain::elementwise},
                                                        {"head_shared", GateGrain::head_shared}}};
};

template <>
struct Words<GateSource> {
  static constexpr std::array<Word<GateSource>, 2> kAll{
      {{"input", GateSource::input}, {"parameter", GateSource::parameter}}};
};

template <>
struct Words<GateFn> {
  static constexpr std::array<Word<GateFn>, 7> kAll{{{"none", GateFn::none},
                                                     {"sigmoid", GateFn::sigmoid},
                                                     {"sigmoid2", GateFn::sigmoid2},
                                                     {"ns_sigmoid", GateFn::ns_sigmoid},
                                                     {"silu", GateFn::silu},
                                                     {"softplus", GateFn::softplus},
                                                     {"identity", GateFn::identity}}};
};

template <>
struct Words<GateOp> {
  static constexpr std::array<Word<GateOp>, 2> kAll{{{"mul", GateOp::mul}, {"add", GateOp::add}}};
};

template <>
struct Words<GateBias> {
  static constexpr std::array<Word<GateBias>, 2> kAll{{{"none", GateBias::none}, {"bias", GateBias::learned}}};
};

template <>
struct Words<OutputControl> {
  static constexpr std::array<Word<OutputControl>, 3> kAll{{{"none", OutputControl::none},
                                                            {"head_rmsnorm", OutputControl::head_rmsnorm},
                                                            {"output_silu", OutputControl::silu}}};
};

template <>
struct Words<SinkKind> {
  static constexpr std::array<Word<SinkKind>, 3> kAll{
      {{"none", SinkKind::none}, {"learned_sinks", SinkKind::learned}, {"off_by_one", SinkKind::off_by_one}}};
};

template <typename Enum>
std::string_view find_word(Enum value) {
  for (const auto& entry : Words<Enum>::kAll) {
    if (entry.value == value) return entry.word;
  }
  return "unknown";
}

/// `text` with '-' for '_': the command line's spelling and the files' are both read.
std::string underscored(std::string_view text) {
  std::string out(text);
  for (char& letter : out) {
    if (letter == '-') letter = '_';
  }
  return out;
}

/// Takes from the front of `text` the longest word of Enum that ends at a '_' or at the end.
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
  if (!word || taken) return false;
  taken = true;
  value = word->value;
  text.remove_prefix(std::min(text.size(), word->word.size() + 1));
  return true;
}

constexpr std::string_view kGateHelp =
    "none, or words of: g1 g2 g3 g4 g5; headwise elementwise head_shared; sigmoid sigmoid2 ns_sigmoid silu softplus "
    "identity; mul add; parameter; bias; head_rmsnorm output_silu; learned_sinks off_by_one";

}  // namespace

std::string_view word_of(GateSite value) { return find_word(value); }
std::string_view word_of(GateGrain value) { return find_word(value); }
std::string_view word_of(GateSource value) { return find_word(value); }
std::string_view word_of(GateFn value) { return find_word(value); }
std::string_view word_of(GateOp value) { return find_word(value); }
std::string_view word_of(GateBias value) { return find_word(value); }
std::string_view word_of(OutputControl value) { return find_word(value); }
std::string_view word_of(SinkKind value) { return find_word(value); }

template <typename Enum>
Enum parse_word(std::string_view what, std::string_view word) {
  const std::string wanted = underscored(word);
  std::string known;
  for (const auto& entry : Words<Enum>::kAll) {
    if (entry.word == wanted) return entry.value;
    if (!known.empty()) known += ", ";
    known += entry.word;
  }
  throw Error(fmt::format("{}: '{}' is none of {}", what, word, known));
}

template GateSite parse_word(std::string_view, std::string_view);
template GateGrain parse_word(std::string_view, std::string_view);
template GateSource parse_word(std::string_view, std::string_view);
template GateFn parse_word(std::string_view, std::string_view);
template GateOp parse_word(std::string_view, std::string_view);
template GateBias parse_word(std::string_view, std::string_view);
template OutputControl parse_word(std::string_view, std::string_view);
template SinkKind parse_word(std::string_view, std::string_view);

void validate(const GateVariant& variant) {
  require(std::isfinite(variant.bias_init), "gate_bias_init {} is not finite", variant.bias_init);
  require(std::isfinite(variant.init_std) && variant.init_std >= 0.0, "gate_init_std {} is not a finite number >= 0",
          variant.init_std);
  if (!has_gate(variant)) {
    require(variant.bias == GateBias::none, "gate_bias: a bias needs a gate");
    return;
  }
  require(variant.fn != GateFn::none, "gate_fn: site {} needs a gate function", word_of(variant.site));
  require(variant.output_control == OutputControl::none,
          "attention_output_control: {} is a control for a layer without a gate, not with {}",
          word_of(variant.output_control), word_of(variant.site));
  require(variant.site != GateSite::g5 || variant.grain != GateGrain::head_shared,
          "gate_grain: the output of W_o (g5) has no heads to share a gate");
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
    require(known, "gate '{}': '{}' is not understood there; {}", name, rest, kGateHelp);
  }
  require(!text.empty(), "gate: no name; {}", kGateHelp);
  if (!site && (grain || source || fn || op || bias)) variant.site = GateSite::g1;
  validate(variant);
  return variant;
}

}  // namespace headgate::layers
