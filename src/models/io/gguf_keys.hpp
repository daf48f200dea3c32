// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

// Lists keys of GGUF files that a reader may ignore, because their values do not change results. GgufValues and
// read_gguf_vocabulary() report unknown keys of an architecture or of the tokenizer as errors. Keys with another
// prefix, such as quantize.imatrix.file, belong to other programs. Readers ignore them, as llama.cpp does.

namespace headgate::io {

struct HarmlessGgufKey {
  std::string_view key;  ///< a prefix "ARCH." stands for the architecture, a final "*" for any text
  std::string_view of;   ///< architecture or tokenizer model that the key belongs to; empty for all
  std::string_view why;
};

inline constexpr std::array<HarmlessGgufKey, 39> kHarmlessGgufKeys{{
    {"general.*", "", "describes the file; type, architecture and alignment are read"},
    {"split.no", "", "read where split.count is above 1"},
    {"split.tensors.count", "", "read where split.count is above 1"},
    {"ARCH.vocab_size", "", "the rows of token_embd.weight count"},
    {"ARCH.pooling_type", "", "pools hidden states to one vector for a text, which nothing here computes"},
    {"ARCH.rope.scaling.finetuned", "", "says how the model was trained"},
    {"ARCH.rope.scaling.original_context_length", "", "YaRN alone has it, and then it is read"},
    {"ARCH.rope.scaling.yarn_beta_fast", "", "YaRN alone has it, and then it is read"},
    {"ARCH.rope.scaling.yarn_beta_slow", "", "YaRN alone has it, and then it is read"},
    {"ARCH.rope.dimension_sections", "qwen35", "a token of text has the same position in all sections"},
    {"ARCH.rope.dimension_sections", "qwen35moe", "a token of text has the same position in all sections"},
    {"ARCH.rope.dimension_sections", "qwen3next", "a token of text has the same position in all sections"},
    {"ARCH.leading_dense_block_count", "step35", "layers without ffn_gate_inp.weight are dense"},
    {"tokenizer.chat_template", "", "conversations read it"},
    {"tokenizer.chat_template.*", "", "the default template alone is used"},
    {"tokenizer.chat_templates", "", "names those that are not used"},
    {"tokenizer.huggingface.json", "", "repeats the other keys"},
    {"tokenizer.rwkv.world", "", "the model rwkv alone has it"},
    {"tokenizer.ggml.token_type_count", "", "counts the segments of BERT's inputs"},
    {"tokenizer.ggml.add_sep_token", "", "prompts of rerankers alone have it"},
    {"tokenizer.ggml.eot_token_id", "", "ends generated texts, where it is read"},
    {"tokenizer.ggml.eom_token_id", "", "ends generated texts, where it is read"},
    {"tokenizer.ggml.fim_pad_token_id", "", "ends generated texts, where it is read"},
    {"tokenizer.ggml.fim_rep_token_id", "", "ends generated texts, where it is read"},
    {"tokenizer.ggml.fim_sep_token_id", "", "ends generated texts, where it is read"},
    {"tokenizer.ggml.fim_pre_token_id", "", "names a token that the user writes"},
    {"tokenizer.ggml.fim_suf_token_id", "", "names a token that the user writes"},
    {"tokenizer.ggml.fim_mid_token_id", "", "names a token that the user writes"},
    {"tokenizer.ggml.prefix_token_id", "", "the former name of fim_pre_token_id"},
    {"tokenizer.ggml.suffix_token_id", "", "the former name of fim_suf_token_id"},
    {"tokenizer.ggml.middle_token_id", "", "the former name of fim_mid_token_id"},
    {"tokenizer.ggml.padding_token_id", "", "no text gets this token; `headgate convert` hands it on"},
    {"tokenizer.ggml.seperator_token_id", "", "no text gets this token"},
    {"tokenizer.ggml.mask_token_id", "", "no text gets this token"},
    {"tokenizer.ggml.cls_token_id", "", "no text gets this token"},
    {"tokenizer.ggml.scores", "gpt2", "merges decide"},
    {"tokenizer.ggml.unknown_token_id", "gpt2", "bytes without a token are left out"},
    {"tokenizer.ggml.merges", "llama", "scores decide"},
    {"tokenizer.ggml.pre", "llama", "a text is one word"},
}};

/// Returns whether a reader may ignore a key. `kind` is the file's architecture. For keys of the tokenizer, `kind` is
/// the tokenizer model.
inline bool is_harmless_gguf_key(std::string_view key, std::string_view kind) {
  constexpr std::string_view kArchitecture = "ARCH.";
  return std::any_of(kHarmlessGgufKeys.begin(), kHarmlessGgufKeys.end(), [&](const HarmlessGgufKey& row) {
    if (!row.of.empty() && row.of != kind) return false;
    std::string pattern(row.key);
    if (row.key.starts_with(kArchitecture)) pattern.replace(0, kArchitecture.size(), std::string(kind) + ".");
    if (!pattern.ends_with('*')) return key == pattern;
    return key.starts_with(pattern.substr(0, pattern.size() - 1));
  });
}

}  // namespace headgate::io
