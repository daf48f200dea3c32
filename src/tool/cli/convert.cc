// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "library/core/format.hpp"
#include "library/core/words.hpp"
#include "models/decoder/parameters.hpp"
#include "models/families/model_file.hpp"
#include "models/generate/files.hpp"
#include "models/generate/gguf_text_files.hpp"
#include "models/tokenize/byte_model.hpp"
#include "models/tokenize/tokenizer.hpp"
#include "models/train/evaluation_choices.hpp"
#include "tool/cli/dtype_option.hpp"
#include "tool/cli/enum_option.hpp"
#include "tool/cli/json_option.hpp"
#include "tool/cli/output_files.hpp"
#include "tool/cli/verbs.hpp"

namespace headgate::cli {
namespace {

struct ConvertOptions {
  std::string in, out;
  DType dtype = DType::f32;
  bool json = false;
  std::optional<models::GateLayout> layout;  ///< gate layout to write; empty keeps the layout of the input
};

/// Describes the written model, for instance "596049920 parameters in bf16, with tokenizer.json".
/// If no tokenizer was written, adds the reason.
std::string description(const models::ModelFile& file, DType dtype, const generate::GgufTextFiles& text) {
  const std::string names = comma_separated(text.files, &models::TextFile::name);
  return fmt::format("{} parameters in {}{}{}{}", models::parameter_count(file.config()), dtype_name(dtype),
                     names.empty() ? "" : ", with ", names,
                     text.no_tokenizer.empty() ? "" : fmt::format("; without a tokenizer: {}", text.no_tokenizer));
}

nlohmann::ordered_json description_json(const ConvertOptions& o, const models::ModelFile& file,
                                        const generate::GgufTextFiles& text) {
  std::vector<std::string> names;
  names.reserve(text.files.size());
  for (const models::TextFile& each : text.files) names.push_back(each.name);
  return {{"out", o.out},
          {"parameters", models::parameter_count(file.config())},
          {"dtype", dtype_name(o.dtype)},
          {"text_files", names},
          {"no_tokenizer", text.no_tokenizer}};
}

/// Returns the value for FileConfig::bos of a byte-level model: the id of BOS, or kNoBos for a model without BOS.
/// Returns nothing if the tokens of the model in `directory` are not bytes.
std::optional<std::int64_t> bos_of_bytes(const std::string& directory) {
  switch (tokenize::byte_text_of(directory)) {
    case tokenize::ByteText::none: break;
    case tokenize::ByteText::plain: return models::kNoBos;
    case tokenize::ByteText::after_bos: return tokenize::kByteBos;
  }
  return std::nullopt;
}

int run_convert(const ConvertOptions& o) {
  const std::string in = train::model_path(o.in);
  check_output_directory({"OUT", o.out}, [&o](InputFiles& inputs) { inputs.add_models("MODEL", {o.in}); });
  const models::ModelFile file(in);
  models::FileConfig out{file.config(), file.layout()};
  out.layout = o.layout.value_or(out.layout);
  models::require_fusable(out.layout, out.config);
  if (file.gguf() == nullptr) {
    out.bos = bos_of_bytes(in);
    out.end_ids = generate::read_config_end_ids(in);
  }
  const generate::GgufTextFiles text = file.gguf() != nullptr
                                           ? generate::gguf_text_files(in, file)
                                           : generate::GgufTextFiles{models::read_text_files(in), {}};
  const std::vector<float> parameters = file.read();
  models::write_model(o.out, out, parameters, o.dtype, text.files);
  say_written("convert", o.out, description(file, o.dtype, text));
  if (o.json) fmt::print("{}", json_text(description_json(o, file, text)));
  return kSuccess;
}

}  // namespace

Verb add_convert(CommandLine& line) {
  auto o = std::make_shared<ConvertOptions>();
  VerbOptions verb = line.add_verb(
      "convert",
      "Write a model as a directory with config.json and model.safetensors\n\n"
      "MODEL is what `headgate eval` reads: a directory made by `headgate train`, one of Hugging Face's (" +
          models::family_names() + "), with shards or without, or a GGUF file (" + models::gguf_architectures() +
          "), whose numbers are widened. OUT loads in transformers where one of its families computes the same; "
          "another model without "
          "experts is model_type headgate, with its code for "
          "transformers (trust_remote_code) in modeling_headgate.py. Files of the tokenizer and of generation are "
          "copied from a directory, and written for a GGUF file if its tokenizer is BPE.");
  verb.argument("MODEL", o->in, kModelHelp);
  verb.argument("OUT", o->out, "The directory to write; a model that is there is replaced");
  declare_dtype(verb, "--dtype", o->dtype, {DType::f32, DType::f16, DType::bf16},
                "f32 (default), f16 or bf16, rounded to nearest even");
  declare_enum<models::GateLayout>(
      verb, "--layout", o->layout, "LAYOUT",
      "Where the gate's rows stand: " + list_words<models::GateLayout>() + " (default: as in MODEL)");
  declare_json(verb, o->json, "one object");
  verb.footer(
      "JSON output:\n"
      "  out           OUT\n"
      "  parameters    a number\n"
      "  dtype         their type in the file\n"
      "  text_files    names of the tokenizer's and generation's files\n"
      "  no_tokenizer  why a tokenizer is missing; empty if it is not\n"
      "\n"
      "Layouts, of Hq heads in Hkv groups:\n"
      "  separate        q in q_proj.weight, the gate in gate_proj.weight\n"
      "  per_query_head  q_proj.weight has each head's q, then its gate\n"
      "  per_group       it has the q of a group's heads, then their gates\n"
      "  trailing        it has the q of all heads, then all gates\n"
      "\n"
      "Examples:\n"
      "  headgate convert SmolLM2-135M-Instruct.Q4_1.gguf smollm2 --dtype bf16\n"
      "  headgate convert 1B_gate_headwise separate --layout separate");
  return {"convert", [o] { return run_convert(*o); }};
}

}  // namespace headgate::cli
