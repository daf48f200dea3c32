// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <string>

#include "models/families/family.hpp"

namespace headgate::models {
namespace {

constexpr std::array kFamilies{&kLlama,      &kMistral, &kQwen2,   &kQwen3,  &kQwen35, &kQwen35Moe, &kQwen3Next,
                               &kOlmoHybrid, &kAfmoe,   &kStep3p5, &kGemma3, &kGptOss, &kHeadgate};

std::string joined(std::string_view Family::*text) {
  std::string out;
  for (const Family* family : kFamilies) {
    if (!(family->*text).empty()) out += (out.empty() ? "" : ", ") + std::string(family->*text);
  }
  return out;
}

}  // namespace

std::span<const Family* const> families() { return kFamilies; }
std::string family_names() { return joined(&Family::name); }
std::string gguf_architectures() { return joined(&Family::architecture); }

void complete_as_llama(ConfigReader& in) {
  std::int64_t dim = 0, heads = 0;
  in.read(dim, "hidden_size", in.get("hidden_size"));
  in.read(heads, "num_attention_heads", in.get("num_attention_heads"));
  in.put_default("num_key_value_heads", static_cast<std::uint64_t>(heads));
  if (heads > 0) in.put_default("head_dim", static_cast<std::uint64_t>(dim / heads));
  in.put_default("rms_norm_eps", 1e-6);
  in.put_default("rope_theta", 10000.0);
  in.put_default("tie_word_embeddings", false);
}

}  // namespace headgate::models
