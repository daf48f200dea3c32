// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/tokenizer_json_text.hpp"

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "models/tokenize/error.hpp"
#include "models/tokenize/scored_merges.hpp"

namespace headgate::tokenize {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson byte_level(bool prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", prefix_space}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

bool is_isolated(const SplitStep& step, std::string_view regex) {
  return step.pattern && step.pattern->regex() == regex && step.behavior == SplitBehavior::isolated && !step.invert;
}

/// Returns the JSON of a pre-tokenizer step other than ByteLevel.
OrderedJson split(const SplitStep& step) {
  if (!step.pattern) refuse("a step without a pattern is written to tokenizer.json only as the last one");
  if (!step.prefix.empty()) refuse("tokenizer.json cannot express a space before a text together with this pattern");
  if (is_isolated(step, kDigitPattern)) return {{"type", "Digits"}, {"individual_digits", true}};
  return {{"type", "Split"},
          {"pattern", {{"Regex", step.pattern->regex()}}},
          {"behavior", word_of(step.behavior)},
          {"invert", step.invert}};
}

OrderedJson pre_tokenizer(const std::vector<SplitStep>& steps) {
  OrderedJson list = OrderedJson::array();
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const SplitStep& step = steps[i];
    const bool gpt2 = is_isolated(step, kGpt2Pattern);
    if (i + 1 == steps.size() && (gpt2 || !step.pattern)) {
      list.push_back(byte_level(!step.prefix.empty(), gpt2));
    } else {
      list.push_back(split(step));
      if (i + 1 == steps.size()) list.push_back(byte_level(false, false));
    }
  }
  if (list.empty()) list.push_back(byte_level(false, false));
  return list.size() == 1 ? list.front() : OrderedJson{{"type", "Sequence"}, {"pretokenizers", list}};
}

OrderedJson replaced(const std::string& from, const std::string& to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

OrderedJson normalizer(const NormalForm& form) {
  OrderedJson list = OrderedJson::array();
  if (form.form_c) list.push_back({{"type", "NFC"}});
  if (!form.space.empty()) list.push_back(replaced(" ", form.space));
  if (!form.prefix.empty()) list.push_back({{"type", "Prepend"}, {"prepend", form.prefix}});
  if (list.empty()) return nullptr;
  return list.size() == 1 ? list.front() : OrderedJson{{"type", "Sequence"}, {"normalizers", list}};
}

OrderedJson decoder(const TokenizerParts& parts) {
  if (parts.model == ModelKind::byte_bpe) return byte_level(true, true);
  OrderedJson list = OrderedJson::array({replaced(parts.space, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}});
  if (parts.drops_leading_space) list.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return {{"type", "Sequence"}, {"decoders", list}};
}

/// Returns the template that puts special tokens around a single text, and around each text of a pair.
OrderedJson post_processor(const TokenizerParts& parts) {
  if (parts.before.empty() && parts.after.empty()) return nullptr;
  OrderedJson special = OrderedJson::object();
  const auto around = [&](const char* text, int type) {
    OrderedJson out = OrderedJson::array();
    const auto add = [&](const std::vector<std::int32_t>& ids) {
      for (const std::int32_t id : ids) {
        const std::string name(parts.vocabulary.spelling(id));
        special[name] = {{"id", name}, {"ids", {id}}, {"tokens", {name}}};
        out.push_back({{"SpecialToken", {{"id", name}, {"type_id", type}}}});
      }
    };
    add(parts.before);
    out.push_back({{"Sequence", {{"id", text}, {"type_id", type}}}});
    add(parts.after);
    return out;
  };
  const OrderedJson single = around("A", 0);
  OrderedJson pair = single;
  for (OrderedJson& piece : around("B", 1)) pair.push_back(std::move(piece));
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", special}};
}

OrderedJson added_token(const AddedToken& token) {
  return {{"id", token.id},          {"content", token.content}, {"single_word", token.single_word},
          {"lstrip", token.lstrip},  {"rstrip", token.rstrip},   {"normalized", token.normalized},
          {"special", token.special}};
}

std::string quoted(std::string_view text) { return OrderedJson(text).dump(); }

/// Calls add(left, right) for each merge in the order of ranks.
template <class Add>
void visit_merges(const TokenizerParts& parts, const Add& add) {
  for (const auto& [left, right] : parts.merges) add(left, right);
  if (parts.model != ModelKind::scored_bpe) return;
  for (const RankedMerge& merge : merges_by_score(parts.vocabulary, parts.scores)) {
    add(parts.vocabulary.spelling(merge.left), parts.vocabulary.spelling(merge.right));
  }
}

/// Returns the JSON of the model. Writes the vocabulary and merges directly as text, because adding n keys to an
/// ordered JSON object takes O(n²) time.
std::string model_text(const TokenizerParts& parts) {
  const BpeOptions& options = parts.options;
  const std::string unknown = options.unknown == kNoToken ? "null" : quoted(parts.vocabulary.spelling(options.unknown));
  std::string out = fmt::format(
      R"({{"type": "BPE", "dropout": null, "unk_token": {}, "continuing_subword_prefix": null, )"
      R"("end_of_word_suffix": null, "fuse_unk": {}, "byte_fallback": {}, "ignore_merges": {}, "vocab": {{)",
      unknown, options.fuse_unknown, options.byte_fallback, options.ignore_merges);
  const char* comma = "\n";
  for (std::int32_t id = 0; id < parts.vocabulary.size(); ++id) {
    const std::string_view spelling = parts.vocabulary.spelling(id);
    if (spelling.empty()) continue;
    fmt::format_to(std::back_inserter(out), "{}{}: {}", comma, quoted(spelling), id);
    comma = ",\n";
  }
  out += "\n}, \"merges\": [";
  comma = "\n";
  visit_merges(parts, [&](std::string_view left, std::string_view right) {
    fmt::format_to(std::back_inserter(out), "{}[{}, {}]", comma, quoted(left), quoted(right));
    comma = ",\n";
  });
  return out + "\n]}";
}

}  // namespace

std::string tokenizer_json_text(const TokenizerParts& parts) {
  OrderedJson added = OrderedJson::array();
  for (const AddedToken& token : parts.added) added.push_back(added_token(token));
  OrderedJson file = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}, {"added_tokens", added}};
  file["normalizer"] = normalizer(parts.form);
  file["pre_tokenizer"] = parts.model == ModelKind::byte_bpe ? pre_tokenizer(parts.steps) : OrderedJson();
  file["post_processor"] = post_processor(parts);
  file["decoder"] = decoder(parts);
  std::string out = file.dump(2);
  out.erase(out.find_last_of('\n'));
  return out + ",\n  \"model\": " + model_text(parts) + "\n}\n";
}

}  // namespace headgate::tokenize
