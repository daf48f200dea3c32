// SPDX-License-Identifier: Apache-2.0
#include "python/headgate/attention_rows.hpp"

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "headgate/error.hpp"
#include "headgate/runtime.hpp"
#include "library/core/gate_functions.hpp"
#include "library/core/precision_words.hpp"

namespace headgate::python {
namespace {

/// An option: its argument, what it sets and the value that it has by default.
struct OptionRow {
  const char* name;
  const char* type;
  void (*take)(const Keywords& keywords, const char* name, AttentionOptions& options);
  std::string (*default_text)();
  std::string help;
};

template <auto kMember>
OptionRow number(const char* name, const char* help) {
  using T = std::remove_reference_t<decltype(AttentionOptions{}.*kMember)>;
  return {name, std::is_floating_point_v<T> ? "float" : "int",
          [](const Keywords& keywords, const char* argument, AttentionOptions& options) {
            options.*kMember = keywords.take(argument, options.*kMember);
          },
          [] { return fmt::format(std::is_floating_point_v<T> ? "{:.1f}" : "{}", AttentionOptions{}.*kMember); }, help};
}

template <auto kMember>
OptionRow word(const char* name, const char* help) {
  using Enum = std::remove_reference_t<decltype(AttentionOptions{}.*kMember)>;
  return {name, "str",
          [](const Keywords& keywords, const char* argument, AttentionOptions& options) {
            const std::string given = keywords.take(argument, "a word", std::string(word_of(options.*kMember)));
            options.*kMember = parse_word<Enum>(fmt::format("{}: {}", keywords.function(), argument), given);
          },
          [] { return fmt::format("'{}'", word_of(AttentionOptions{}.*kMember)); },
          list_words<Enum>() + std::string("; ") + help};
}

void take_scale(const Keywords& keywords, const char* name, AttentionOptions& options) {
  if (const nb::object given = keywords.take(name); !given.is_none()) {
    options.scale = keywords.require<double>(name);
  }
}

/// Returns find(). Its errors then begin with the names of the call and the argument.
template <class Find>
auto found(const Keywords& keywords, const char* name, const Find& find) {
  try {
    return find();
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}: {}", keywords.function(), name, error.what()));
  }
}

void take_target(const Keywords& keywords, const char* name, AttentionOptions& options) {
  const auto target = keywords.take(name, "a word", std::string());
  if (target.empty()) return;
  options.context.target = found(keywords, name, [&target] { return find_target(target); });
}

void take_backend(const Keywords& keywords, const char* name, AttentionOptions& options) {
  const auto backend = keywords.take(name, "a word", std::string());
  if (backend.empty()) return;
  options.context.backend = found(keywords, name, [&backend] { return &find_backend(backend); });
}

const std::vector<OptionRow>& option_rows() {
  using O = AttentionOptions;
  const auto none = [] { return std::string("None"); };
  const auto empty = [] { return std::string("''"); };
  static const std::vector<OptionRow> rows{
      {"scale", "float | None", take_scale, none, "factor of q k^T; 1/sqrt(D) where it is None"},
      number<&O::softcap>("softcap", "scores become c * tanh(score / c); 0 for no cap"),
      word<&O::causality>("causality", "causal: query i sees key j only if j <= at_i"),
      number<&O::window_left>("window_left", "query i sees key j only if at_i - window_left <= j; -1 for no limit"),
      number<&O::window_right>("window_right", "query i sees key j only if j <= at_i + window_right; -1 for no limit"),
      word<&O::gate_fn>("gate_fn", "the gate's function g, read only with gate"),
      word<&O::gate_op>("gate_op", "mul: y = o * g(z); add: y = o + g(z)"),
      number<&O::gate_threshold>("gate_threshold",
                                 "rows whose gate is at most this in every feature are not computed: y is 0 there and "
                                 "lse inf; 0 for off; without gradients"),
      word<&O::precision>("precision",
                          "of products of bf16: exact, in float32; native16, in bf16 with float32 sums where the CPU "
                          "has instructions for it"),
      {"threads", "int | None",
       [](const Keywords& keywords, const char* /*name*/, AttentionOptions& options) {
         options.context.threads = take_threads(keywords);
       },
       none, threads_text().help},
      {"target", "str", take_target, empty, "a vector target of supported_targets(); '' for active_target()"},
      {"backend", "str", take_backend, empty,
       "one of supported_backends(); '' for the first that can compute the call"},
  };
  return rows;
}

constexpr const char* kLayout = "layout";

bool is_of_pages(const InputRow& row) {
  using I = AttentionInputs;
  return row.member == &I::k || row.member == &I::v || row.member == &I::k_scale || row.member == &I::v_scale;
}

}  // namespace

Layout take_layout(const Keywords& keywords) {
  const std::string word = keywords.take(kLayout, "a word", std::string(word_of(Layout::bhtd)));
  return parse_word<Layout>(fmt::format("{}: {}", keywords.function(), kLayout), word);
}

std::int64_t keys_of(const AttentionInputs& in) {
  std::int64_t keys = in.k.shape[2];
  if (in.block_table.present() && __builtin_mul_overflow(keys, in.block_table.shape[3], &keys)) return 0;
  return keys;
}

Inputs take_inputs(const Keywords& keywords, std::size_t required) {
  Inputs inputs;
  inputs.layout = take_layout(keywords);
  inputs.q = keywords.take(kInputRows[0].name);
  const bool paged = !keywords.take("block_table").is_none();
  for (std::size_t i = 0; i < kInputRows.size(); ++i) {
    const InputRow& row = kInputRows[i];
    const nb::object given = keywords.take(row.name);
    require(i >= required || !given.is_none(), "{}: {} is required but None", keywords.function(), row.name);
    const ArrayKind kind = paged && is_of_pages(row) ? ArrayKind::pages : row.kind;
    inputs.arrays[i] = input_of(keywords.function(), row.name, given, kind, inputs.layout);
    inputs.views.*row.member = inputs.arrays[i].view;
  }
  return inputs;
}

AttentionOptions take_options(const Keywords& keywords) {
  AttentionOptions options;
  for (const OptionRow& row : option_rows()) row.take(keywords, row.name, options);
  return options;
}

ArgumentText layout_text() {
  return {kLayout, "str", fmt::format("'{}'", word_of(Layout::bhtd)),
          "the order of the dimensions of q, k, v, gate, y, attn, pages and their gradients: " + list_words<Layout>()};
}

std::vector<ArgumentText> input_texts(std::size_t required) {
  std::vector<ArgumentText> texts;
  for (std::size_t i = 0; i < kInputRows.size(); ++i) {
    const InputRow& row = kInputRows[i];
    if (i < required) {
      texts.push_back({row.name, "Array", "", row.help});
    } else {
      texts.push_back({row.name, "Array | None", "None", row.help});
    }
  }
  texts.push_back(layout_text());
  return texts;
}

std::vector<ArgumentText> option_texts() {
  std::vector<ArgumentText> texts;
  for (const OptionRow& row : option_rows()) texts.push_back({row.name, row.type, row.default_text(), row.help});
  return texts;
}

}  // namespace headgate::python
