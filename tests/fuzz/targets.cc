// SPDX-License-Identifier: Apache-2.0
#include "fuzz/targets.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string_view>

#include "headgate/error.hpp"
#include "models/data/token_file.hpp"
#include "models/families/config_file.hpp"
#include "models/families/model_file.hpp"
#include "models/families/tensor_file.hpp"
#include "models/io/gguf.hpp"
#include "models/io/gguf_bytes.hpp"
#include "models/io/npy.hpp"
#include "models/io/safetensors.hpp"
#include "models/io/scratch.hpp"
#include "models/jinja/template.hpp"
#include "models/tokenize/charsmap_bytes.hpp"
#include "models/tokenize/gguf_vocabulary.hpp"
#include "models/tokenize/tokenizer_json.hpp"
#include "models/train/settings.hpp"
#include "tool/explain/problem.hpp"
#include "tool/explain/solution.hpp"

namespace headgate::fuzz {
namespace {

using headgate::testing::MemoryFile;

void check_message(std::string_view what, std::string_view front) {
  bool printable = what.starts_with(front);
  for (const char c : what) {
    const auto byte = static_cast<unsigned char>(c);
    printable = printable && byte >= 0x20 && byte != 0x7F;
  }
  if (!printable) throw std::logic_error("not one printable line about the file: " + std::string(what));
}

/// Calls body(path) with a file of `bytes` at the path.
template <class Refusal, class Body>
void with_file(const std::string& bytes, const Body& body) {
  static const MemoryFile file;
  file.write(bytes);
  const std::string path = file.path();
  try {
    body(path);
  } catch (const Refusal& refusal) {
    check_message(refusal.what(), path + ": ");
  }
}

std::string binary(std::uint64_t number, std::size_t bytes) {
  std::string out;
  for (std::size_t i = 0; i < bytes; ++i) out += static_cast<char>(number >> (8 * i));
  return out;
}

void expect(bool fits, const char* what) {
  if (!fits) throw std::logic_error(what);
}

// --- .npy --------------------------------------------------------------------------------------------------------

void run_npy(const std::string& bytes) {
  with_file<io::FileError>(bytes, [&](const std::string& path) {
    const io::Array array = io::read_npy(path);
    expect(array.bytes() <= bytes.size(), "an array larger than its file");
  });
}

std::vector<std::string> npy_seeds() {
  const std::string data(24, '\1');
  const std::string dict = "{'descr': '<f4', 'fortran_order': True, 'shape': (3, 2), }        \n";
  return {io::npy_header(DType::f32, {2, 3}) + data, io::npy_header(DType::boolean, {24}) + data,
          io::npy_header(DType::f64, {}) + data.substr(0, 8),
          "\x93NUMPY\x02" + std::string(1, '\0') + binary(dict.size(), 4) + dict + data};
}

// --- safetensors -------------------------------------------------------------------------------------------------

std::string safetensors(const std::string& header, const std::string& data) {
  return binary(header.size(), 8) + header + data;
}

void run_safetensors(const std::string& bytes) {
  with_file<io::FileError>(bytes, [&](const std::string& path) {
    const io::SafetensorsReader file(path);
    file.verify_checksum();
    std::size_t total = 0;
    for (const io::TensorEntry& entry : file.tensors()) {
      total += entry.bytes;
      std::vector<char> raw(entry.bytes);
      file.read(entry, raw.data());
      std::vector<float> values(entry.numel());
      try {
        file.read_f32(entry, values.data());
      } catch (const io::FileError& refusal) {
        check_message(refusal.what(), path + ": ");
      }
    }
    expect(total < bytes.size(), "tensors larger than their file");
  });
}

std::vector<std::string> safetensors_seeds() {
  const std::string data(24, '\0');
  const std::string a = R"("a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]})";
  const std::string b = R"("b.weight":{"dtype":"BF16","shape":[4],"data_offsets":[16,24]})";
  const std::string metadata = R"("__metadata__":{"format":"pt","headgate.checksum":"0123456789abcdef"})";
  return {safetensors("{}", ""), safetensors(fmt::format("{{{},{}}}", a, b), data),
          safetensors(fmt::format("{{{},{},{}}}", metadata, a, b), data),
          safetensors(R"({"x":{"dtype":"I64","shape":[],"data_offsets":[0,8]}}   )", data.substr(0, 8))};
}

// --- GGUF --------------------------------------------------------------------------------------------------------

void run_gguf(const std::string& bytes) {
  with_file<io::FileError>(bytes, [&](const std::string& path) {
    const io::GgufFile file(path);
    for (const auto& [key, value] : file.values()) {
      expect(value.count <= bytes.size(), "a list longer than its file");
      using enum io::GgufType;
      if (value.type == string) file.string(key);
      if (value.type == list && value.of == string) file.strings(key);
      if (value.type == list && value.of == f32) file.numbers(key);
    }
    for (const io::GgufTensor& tensor : file.tensors()) {
      expect(tensor.bytes <= bytes.size(), "a tensor larger than its file");
      std::vector<float> values(static_cast<std::size_t>(tensor.numel()));
      try {
        file.read_f32(tensor, values.data());
      } catch (const io::FileError& refusal) {
        check_message(refusal.what(), path + ": ");
      }
    }
  });
}

std::vector<std::string> gguf_seeds() {
  headgate::testing::GgufBytes values, tensors;
  values.string("general.architecture", "llama").u32("llama.block_count", 2).f32("f", 1.0F).strings("t", {"a", "bc"});
  values.f32_tensor("x", {2, 2}, {1, 2, 3, 4});
  for (const io::GgufFormat& format : io::gguf_formats()) {
    if (format.numbers <= 32) {
      tensors.tensor(std::string(format.word), {format.numbers}, format.id, std::string(format.bytes, '\1'));
    }
  }
  return {values.bytes(), tensors.bytes()};
}

// --- model.safetensors -------------------------------------------------------------------------------------------

const models::ParameterTable& model_table() {
  static const models::ParameterTable table([] {
    models::DecoderConfig config;
    config.vocab = config.dim = config.layers = config.heads = config.kv_heads = config.head_dim = config.ffn = 1;
    return config;
  }());
  return table;
}

void run_model(const std::string& bytes) {
  with_file<io::FileError>(bytes, [&](const std::string& path) {
    const auto buffers = models::read_tensors(path, model_table(), {""}, models::StoredAs::any_float);
    expect(static_cast<std::int64_t>(buffers.at(0).size()) == model_table().total(), "a buffer of another size");
  });
}

std::vector<std::string> model_seeds() {
  std::vector<std::string> entries;
  std::size_t end = 0;
  for (const models::Parameter& p : model_table().entries()) {
    entries.push_back(fmt::format(R"("{}":{{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}})", p.name,
                                  fmt::join(p.shape, ","), end, end + sizeof(float)));
    end += sizeof(float);
  }
  return {safetensors(fmt::format("{{{}}}", fmt::join(entries, ",")), std::string(end, '\0'))};
}

// --- models in GGUF ----------------------------------------------------------------------------------------------

void run_gguf_model(const std::string& bytes) {
  with_file<io::FileError>(bytes, [&](const std::string& path) {
    if (!models::is_gguf(path)) return;
    const models::ModelFile file(path);
    if (models::parameter_count(file.config()) > static_cast<std::int64_t>(bytes.size())) return;
    file.read();
  });
}

std::vector<std::string> gguf_model_seeds() {
  headgate::testing::GgufBytes out;
  out.string("general.architecture", "llama").u32("llama.block_count", 1).u32("llama.context_length", 4);
  out.u32("llama.embedding_length", 2).u32("llama.feed_forward_length", 1).u32("llama.attention.head_count", 1);
  out.f32("llama.attention.layer_norm_rms_epsilon", 1e-5F).u32("llama.rope.dimension_count", 2);
  out.f32_tensor("token_embd.weight", {1, 2}, {1, 2}).f32_tensor("output_norm.weight", {2}, {1, 1});
  for (const char* name : {"attn_norm", "ffn_norm"}) {
    out.f32_tensor(fmt::format("blk.0.{}.weight", name), {2}, {1, 1});
  }
  for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output"}) {
    out.f32_tensor(fmt::format("blk.0.{}.weight", name), {2, 2}, {1, 2, 3, 4});
  }
  for (const char* name : {"ffn_gate", "ffn_up"}) out.f32_tensor(fmt::format("blk.0.{}.weight", name), {1, 2}, {1, 2});
  out.f32_tensor("blk.0.ffn_down.weight", {2, 1}, {1, 2}).f32_tensor("rope_freqs.weight", {1}, {1});
  return {out.bytes()};
}

// --- JSON --------------------------------------------------------------------------------------------------------

void run_config(const std::string& bytes) {
  with_file<io::FileError>(bytes, [](const std::string& path) {
    const models::FileConfig file = models::read_file_config(path);
    const std::string own = models::write_config(file.config), shared = models::write_public_config(file, DType::f32);
    expect(models::parse_config("again", own) == file.config, "written, it reads as another");
    const models::FileConfig again = models::parse_file_config("again", shared);
    expect(again.config == file.config && again.layout == file.layout, "written for others, it reads as another");
  });
}

std::vector<std::string> config_seeds() {
  models::DecoderConfig gated;
  gated.gate = layers::parse_gate("g1-headwise-bias-learned_sinks");
  gated.norm_placement = models::NormPlacement::sandwich;
  gated.rope_fraction = 0.25;
  std::string moved = models::write_config({});
  const std::string theta = "\"rope_theta\": 10000.0";
  moved.replace(moved.find(theta), theta.size(), R"("rope_parameters": {"rope_theta": 5e5, "rope_type": "default"})");
  models::DecoderConfig llama;
  llama.qk_norm = models::QkNorm::none;
  llama.rope_scaling = layers::RopeScalingKind::llama3;
  models::DecoderConfig mistral = llama;
  mistral.rope_scaling = layers::RopeScalingKind::none;
  mistral.window = 9;
  models::FileConfig fused{gated, models::GateLayout::per_group};
  return {models::write_config({}),
          models::write_config(gated),
          moved,
          models::write_public_config({llama}, DType::f32),
          models::write_public_config({mistral}, DType::bf16),
          models::write_public_config(fused, DType::f16)};
}

void run_trainer_state(const std::string& bytes) {
  try {
    train::read_state(bytes);
  } catch (const Error& refusal) {
    check_message(refusal.what(), "");
  }
}

std::vector<std::string> trainer_state_seeds() {
  train::TrainerState state;
  state.settings.paths = {"a.txt", "b"};
  state.recent_losses = {2.5, 2.25};
  return {train::write_state(state)};
}

void run_worked_problem(const std::string& bytes) {
  with_file<io::FileError>(bytes, [](const std::string& path) {
    const explain::WorkedProblem problem = explain::read_worked_problem(path);
    if (problem.heads > 4 || (problem.X && problem.X->rows > 64)) return;
    try {
      explain::solve(problem);
    } catch (const Error& overflow) {
      check_message(overflow.what(), "");
    }
  });
}

std::vector<std::string> worked_problem_seeds() {
  return {R"({"X":[[1,0],[0,1]],"W_q":[[1,0],[0,1]],"W_k":[[1,0],[0,1]],"W_v":[[1,0],[0,1]],"W_g":[[0,1],[2,-3]]})",
          R"({"Q":[[1,2,0,1]],"K":[[1,2]],"V":[[3]],"Z":[[0.5,1]],"heads":2,"kv_heads":1,"causal":true,)"
          R"("gate_fn":"silu"})"};
}

// --- ids of a text -------------------------------------------------------------------------------------------------

constexpr std::size_t kTokenFileHash = 16;  // characters of a hash or checksum

/// `bytes` with the checksum of what stands before it, so that damaged records are read too.
std::string with_checksum(const std::string& bytes) {
  if (bytes.size() < kTokenFileHash) return bytes;
  const std::string before = bytes.substr(0, bytes.size() - kTokenFileHash);
  io::Checksum checksum;
  checksum.add(before.data(), before.size());
  return before + checksum.text();
}

void run_token_file(const std::string& bytes) {
  for (const std::string& file : {bytes, with_checksum(bytes)}) {
    with_file<io::FileError>(file, [&](const std::string& path) {
      const train::TokenFile tokens(path);
      expect(static_cast<std::size_t>(tokens.size()) * 4 < bytes.size(), "more tokens than the file holds");
      std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens.size()));
      tokens.copy(ids.data(), 0, tokens.size());
      for (const std::int32_t id : ids) expect(id >= 0 && id < tokens.vocab(), "an id outside of the vocabulary");
      expect(tokens.begin_of_tail(tokens.text_bytes(0, tokens.size())) >= 0, "a tail that begins before the text");
    });
  }
}

std::vector<std::string> token_file_seeds() {
  const std::string magic = "headgate-tokens1", hash(kTokenFileHash, 'a'), text = binary(7, 8), left_out = binary(0, 8);
  const auto file = [&](std::size_t id_bytes, const std::string& records) {
    return with_checksum(magic + hash + text + binary(id_bytes, 4) + binary(300, 4) + records + left_out + hash);
  };
  return {file(2, binary(5, 2) + binary(1, 2) + binary(299, 2) + binary(3, 2)), file(4, binary(5, 4) + binary(1, 4)),
          file(2, "")};
}

// --- tokenizers --------------------------------------------------------------------------------------------------

/// Checks a tokenizer that was read: decoding must return a text, except for what is left out, normalized or removed.
void check_tokenizer(const tokenize::Tokenizer& tokenizer) {
  const std::string text = "The caf\u00e9, e\u0301 42nd <s>\n\n \xff\xe4\xb8 \u4e2d\u6587 aaaaaaaaab";
  try {
    const tokenize::Encoding encoding = tokenizer.encode(text, {.spans = true});
    expect(encoding.spans.size() == encoding.ids.size(), "tokens without a place");
    for (const tokenize::Span& span : encoding.spans) {
      expect(span.begin <= span.end && span.end <= text.size(), "a token outside of its text");
    }
    tokenizer.decode(encoding.ids);
    const auto stream = tokenizer.stream({});
    std::vector<std::int32_t> ids;
    const auto take = [&ids](const tokenize::Encoding& more) {
      ids.insert(ids.end(), more.ids.begin(), more.ids.end());
    };
    for (const char& byte : text) take(stream->next({&byte, 1}));
    take(stream->finish());
    expect(ids == encoding.ids, "other tokens of a text that comes byte by byte");
  } catch (const io::FileError& refusal) {
    check_message(refusal.what(), "");
  }
}

void run_tokenizer(const std::string& bytes) {
  with_file<io::FileError>(bytes,
                           [](const std::string& path) { check_tokenizer(*tokenize::read_tokenizer_json(path)); });
}

/// BPE of characters with all byte tokens.
std::string sentence_piece_seed() {
  std::string vocab = R"("<unk>":0,"<s>":1,"\u2581":2,"a":3,"b":4,"\u2581a":5,"aa":6)";
  for (int byte = 0; byte < 256; ++byte) vocab += fmt::format(R"(,"<0x{:02X}>":{})", byte, 7 + byte);
  return R"({"model":{"type":"BPE","unk_token":"<unk>","fuse_unk":true,"byte_fallback":true,"vocab":{)" + vocab +
         R"(},"merges":["\u2581 a","a a"]},"normalizer":{"type":"Sequence","normalizers":[)"
         R"({"type":"Prepend","prepend":"\u2581"},{"type":"Replace","pattern":{"String":" "},"content":"\u2581"}]},)"
         R"("decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"\u2581"},"content":" "},)"
         R"({"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]},)"
         R"("added_tokens":[{"id":1,"content":"<s>","normalized":true,"special":true}]})";
}

std::string unigram_seed() {
  return R"({"model":{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0.0],["\u2581",-2.5],["a",-3],["aa",-4.25],)"
         R"(["\u2581a",-3.5]]},"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},)"
         R"({"type":"Metaspace","replacement":"\u2581","prepend_scheme":"first","split":true}]},)"
         R"("decoder":{"type":"Metaspace","replacement":"\u2581","prepend_scheme":"first"}})";
}

std::string base64(const std::string& bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t at = 0; at + 2 < bytes.size(); at += 3) {
    unsigned bits = 0;
    for (std::size_t i = 0; i < 3; ++i) bits = bits << 8 | static_cast<unsigned char>(bytes[at + i]);
    for (const unsigned shift : {18U, 12U, 6U, 0U}) out += kDigits[bits >> shift & 63];
  }
  return out;
}

/// Unigram with a table that replaces "a" by "b".
std::string charsmap_seed() {
  testing::CharsmapBytes table = testing::CharsmapBytes::of({{"a", "b"}});
  while (table.bytes().size() % 3 != 0) table.replacements += '\0';
  return R"({"model":{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0.0],["b",-2.5],["bb",-3]]},)"
         R"("normalizer":{"type":"Precompiled","precompiled_charsmap":")" +
         base64(table.bytes()) + R"("}})";
}

std::vector<std::string> tokenizer_seeds() {
  const std::string vocab = R"("vocab":{"a":0,"b":1,"Ġ":2,"ab":3,"<s>":4,"aa":5,"Ã":6,"©":7},"merges":)";
  const std::string added =
      R"("added_tokens":[{"id":4,"content":"<s>","single_word":false,"lstrip":true,"rstrip":false,)"
      R"("normalized":false,"special":true}])";
  const std::string around = R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>",)"
                             R"("type_id":0}},{"Sequence":{"id":"A","type_id":0}}],)"
                             R"("special_tokens":{"<s>":{"id":"<s>","ids":[4],"tokens":["<s>"]}}})";
  const std::string split =
      R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Digits",)"
      R"("individual_digits":true},{"type":"Split","pattern":{"Regex":"\\s+(?!\\S)|[^a]+?b{1,3}"},)"
      R"("behavior":"MergedWithNext","invert":false},)"
      R"({"type":"ByteLevel","add_prefix_space":true,"use_regex":false}]})";
  return {R"({"model":{"type":"BPE",)" + vocab + R"(["a b","a a"]},"pre_tokenizer":{"type":"ByteLevel"}})",
          R"({"normalizer":{"type":"NFC"},)" + added + "," + around + "," + split +
              R"(,"model":{"type":"BPE","unk_token":"a","fuse_unk":true,"ignore_merges":true,)" + vocab +
              R"([["a","b"],["a","a"]]}})",
          sentence_piece_seed(), unigram_seed(), charsmap_seed()};
}

/// Builds the arrays of a GGUF file from lines of pre, then tokens, an empty line and merges; a token's type is its
/// first byte. With the pre "llama", its model is llama, and a token's score is its second byte.
void run_gguf_vocabulary(const std::string& bytes) {
  tokenize::GgufVocabulary arrays;
  arrays.model = "gpt2";
  arrays.add_bos_token = true;
  arrays.bos_token_id = 0;
  std::vector<std::string>* list = &arrays.tokens;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t end = std::min(bytes.find('\n', at), bytes.size());
    const std::string line = bytes.substr(at, end - at);
    if (at == 0) {
      arrays.pre = line;
      if (line == "llama") arrays.model = line;
    } else if (line.empty()) {
      list = &arrays.merges;
    } else if (list == &arrays.merges) {
      list->push_back(line);
    } else {
      arrays.token_type.push_back(line[0] - '0');
      const bool scored = arrays.model == "llama" && line.size() > 1;
      if (scored) arrays.scores.push_back(static_cast<float>(line[1]));
      list->push_back(line.substr(scored ? 2 : 1));
    }
    at = end + 1;
  }
  try {
    check_tokenizer(*tokenize::make_gguf_tokenizer("arrays", arrays));
  } catch (const io::FileError& refusal) {
    check_message(refusal.what(), "arrays: ");
  }
}

std::vector<std::string> gguf_vocabulary_seeds() {
  return {"smollm\n3<s>\n1a\n1b\n1ab\n\na b\n", "llama-bpe\n3<s>\n1a\n1b\n1ab\n4ba\n\na b\n", "qwen2\n1a\n",
          "llama\n3z<s>\n1za\n1zb\n1yab\n1xba\n4zaab\n1w\u2581\n1v\u2581a\n"};
}

// --- chat templates ----------------------------------------------------------------------------------------------

void run_chat_template(const std::string& bytes) {
  using jinja::Value;
  const auto message = [](const char* role, const char* content) {
    return Value(jinja::Dict{{"role", Value(std::string(role))}, {"content", Value(std::string(content))}});
  };
  const jinja::List messages{message("system", "Be brief."), message("user", "What?"), message("assistant", "That.")};
  try {
    jinja::Template(bytes).render({{"messages", Value(messages)}, {"bos_token", Value(std::string("<s>"))}},
                                  {.budget = std::size_t{1} << 20});
  } catch (const Error& refusal) {
    check_message(refusal.what(), "chat template, line ");
  }
}

std::vector<std::string> chat_template_seeds() {
  return {
      R"({{ bos_token }}{% for m in messages %}{% if m.role == 'user' and not loop.last %}
<|user|>{{ m['content'] | trim }}
{%- elif m.role != "system" -%}
  {{ m.content.split('a')[0].strip('\n') ~ loop.index0 }}
{% else %}{# a comment #}{{ raise_exception("no " + m.role) if false }}{% endif %}{% endfor %})",
      R"({%- macro f(a, b=[1, 2], c={'k': none}) %}{{ a }}{{ b[::-1] | length }}{{ c | tojson(indent=2) }}{% endmacro -%}
{% set ns = namespace(n=0, t='') %}{% for i in range(5) if i is odd %}{% set ns.n = ns.n + i * 2 // 3 %}
{% if i > 3 %}{% break %}{% endif %}{% else %}none{% endfor %}{{ f(ns.n, b=messages[1:]) }})",
      R"({% set text %}a {{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(',') }}
{% endset %}{{ text | replace('a', 'b') | upper if text is defined and 'a' in text else -1 % 7 }}
{% generation %}{{ strftime_now('%Y') }}{% endgeneration %})"};
}

}  // namespace

const std::vector<Target>& targets() {
  static const std::vector<std::string> json{"{", "}",    "[",    "]",     "\"", ":",
                                             ",", "null", "true", "1e999", "-1", "\\u0000"};
  const auto with = [](std::vector<std::string> words) {
    words.insert(words.end(), json.begin(), json.end());
    return words;
  };
  static const std::vector<Target> all{
      {"npy", run_npy, npy_seeds, {"'descr'", "'shape'", "'fortran_order'", "'<f8'", "'>f4'", "(", ")", ",", "True"}},
      {"safetensors", run_safetensors, safetensors_seeds,
       with({"\"dtype\"", "\"F16\"", "\"BOOL\"", "\"shape\"", "\"data_offsets\"", "\"__metadata__\"", "\"a\""})},
      {"gguf",
       run_gguf,
       gguf_seeds,
       {"GGUF", binary(3, 4), binary(32, 8), binary(0, 8), binary(~std::uint64_t{0}, 8), binary(9, 4), binary(8, 4)}},
      {"gguf_model",
       run_gguf_model,
       gguf_model_seeds,
       {"qwen2", "qwen3", "expert_count", binary(1, 4), binary(0, 4), binary(4, 4), binary(2, 8)}},
      {"model", run_model, model_seeds,
       with({"\"F16\"", "\"BF16\"", "[1,1]", "[1]", "[]", "model.layers.0.", ".weight"})},
      {"config", run_config, config_seeds,
       with({"\"gate_site\"", "\"g1\"", "\"gate_fn\"", "\"norm_kind\"", "\"rope_parameters\"", "\"rope_theta\"",
             "\"head_dim\"", "\"qwen3\"", "\"headgate\"", "\"layer_types\"", "\"llama\"", "\"mistral\"", "\"qwen2\"",
             "\"rope_scaling\"", "\"gate_layout\"", "\"per_group\""})},
      {"trainer_state", run_trainer_state, trainer_state_seeds,
       with({"\"task\"", "\"step\"", "\"seed\"", "[]", "\"lr\""})},
      {"worked_problem", run_worked_problem, worked_problem_seeds,
       with({"\"heads\"", "\"kv_heads\"", "\"gate_fn\"", "\"W_o\"", "\"Z\"", "[[", "]]", "[[]]", "1e308"})},
      {"token_file", run_token_file, token_file_seeds, {"headgate-tokens1", binary(2, 4), binary(4, 4), binary(0, 8)}},
      {"chat_template",
       run_chat_template,
       chat_template_seeds,
       {"{{",
        "}}",
        "{%",
        "-%}",
        "{#",
        "#}",
        "{% for i in range(9) %}",
        "{% endfor %}",
        "{% endif %}",
        "|tojson",
        "|list",
        "is ",
        "~",
        "[::-1]",
        "(",
        ")",
        "'\\u00e9'",
        "messages",
        "loop.",
        "namespace(",
        ".split()",
        " not in ",
        "**",
        "\xff"}},
      {"tokenizer", run_tokenizer, tokenizer_seeds,
       with({"\"vocab\"",
             "\"merges\"",
             "\"type\"",
             "\"ByteLevel\"",
             "\"Split\"",
             "\"Removed\"",
             "\"Contiguous\"",
             "\"NFC\"",
             "(?=",
             "(?<=",
             "(?i:",
             "(a|aa)+",
             "[^",
             "]*+",
             "\\\\p{L}",
             "\\\\d",
             "{2,9}",
             "$",
             "|",
             "\"Unigram\"",
             "\"Metaspace\"",
             "\"Replace\"",
             "\"byte_fallback\"",
             "\u2581"})},
      {"gguf_vocabulary",
       run_gguf_vocabulary,
       gguf_vocabulary_seeds,
       {"\n", "\n\n", " ", "\n1", "\n3", "\n4", "gpt2", "qwen2", "\u0120", "\xff"}}};
  return all;
}

}  // namespace headgate::fuzz
