// SPDX-License-Identifier: Apache-2.0
#include "models/families/model_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>

#include "library/core/check.hpp"
#include "library/core/convert.hpp"
#include "models/families/config_file.hpp"
#include "models/families/gguf_model.hpp"
#include "models/families/modeling_code.hpp"
#include "models/io/directory_entries.hpp"
#include "models/io/exists.hpp"
#include "models/io/input_file.hpp"
#include "models/io/npy.hpp"
#include "models/io/safetensors.hpp"
#include "models/io/staged_directory.hpp"
#include "models/io/staged_file.hpp"
#include "models/io/work.hpp"

namespace headgate::models {
namespace {

using io::fail;
using io::printable_name;

constexpr const char* kConfig = "config.json";
constexpr const char* kModel = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr std::string_view kQProjection = "self_attn.q_proj.weight";
constexpr std::string_view kGateProjection = "self_attn.gate_proj.weight";

/// Returns whether a model's directory may contain the tensor, although the decoder has no such parameter. Such tensors
/// are:
/// - frequencies of RoPE, stored by old programs
/// - a copy of tied embeddings
/// - vision models and multi-token-prediction (MTP) layers
bool is_extra_tensor(const std::string& name, const FileConfig& file) {
  if (name.ends_with(".rotary_emb.inv_freq")) return true;
  if (name == file.head && file.config.embeddings == Embeddings::tied) return true;
  if (is_of_further_layer(name, file.prefix + "layers.", file)) return true;
  if (!file.family->has_other_parts) return false;
  constexpr std::array kBegins{
      "mtp.",          "model.mtp.",          "model.visual.",          "visual.",
      "vision_tower.", "model.vision_tower.", "multi_modal_projector.", "model.multi_modal_projector.",
      "vision_model.", "vit_large_projector."};
  return std::any_of(kBegins.begin(), kBegins.end(), [&](const char* begin) { return name.starts_with(begin); });
}

std::int64_t count_of(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

/// Returns whether two tensors have the same shape and numbers.
bool same_numbers(const WeightFiles& files, const std::string& a, const std::string& b) {
  if (*files.shape(a) != *files.shape(b)) return false;
  const StoredTensor one = files.stored(a), other = files.stored(b);
  if (one.format == other.format && one.scales == nullptr && other.scales == nullptr) {
    const auto bytes = static_cast<std::size_t>(one.numel / one.format->numbers * one.format->bytes);
    return std::memcmp(one.data, other.data, bytes) == 0;
  }
  std::vector<float> numbers(static_cast<std::size_t>(one.numel)), others(static_cast<std::size_t>(other.numel));
  files.read(a, numbers.data());
  files.read(b, others.data());
  return numbers == others;
}

}  // namespace

bool is_gguf(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  const io::InputFile file(path);
  std::array<char, 4> magic{};
  if (file.size() < magic.size()) return false;
  file.read(magic.data(), magic.size());
  return std::string_view(magic.data(), magic.size()) == "GGUF";
}

std::vector<std::string> files_of_model(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return io::gguf_parts(path);
  std::vector<std::string> names{kConfig, kModel, kIndex, kModelingFile};
  names.insert(names.end(), kTextFiles.begin(), kTextFiles.end());
  std::vector<std::string> out;
  out.reserve(names.size());
  for (const std::string& name : names) out.push_back(fmt::format("{}/{}", path, name));
  for (const auto& entry : io::directory_entries(path, error)) {
    const std::string name = entry.path().filename().string();
    // Protects all weight files and indices in the directory, even those that the opened model does not read.
    const bool weights = name.ends_with(".safetensors") || name.ends_with(".bin") || name.ends_with(".gguf");
    if (weights || name.ends_with(".index.json")) out.push_back(fmt::format("{}/{}", path, name));
  }
  return out;
}

ModelFile::ModelFile(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    file_ = read_file_config(path + "/" + kConfig);
    family_ = file_.family;
    weights_ = open_safetensors(path);
    find_prefix();
    untie_different_head();
  } else {
    gguf_ = std::make_shared<const io::GgufFile>(path);
    family_ = &family_of_gguf(*gguf_);
    file_.config = config_of_gguf(*gguf_, *family_);
    file_.further_layers = further_layers_of_gguf(*gguf_, file_.config);
    weights_ = open_gguf(gguf_);
  }
}

TensorLocation ModelFile::stored(const Parameter& parameter) const {
  if (gguf_) return stored_in_gguf(parameter, file_.config, *family_);
  return stored_in_directory(parameter, file_, [this](const std::string& name) { return weights_->shape(name); });
}

/// Finds the prefix of tensor names, which is longer if the text model is part of a larger model.
void ModelFile::find_prefix() {
  if (family_->outer_name.empty()) return;
  struct Names {
    const char *prefix, *head;
  };
  constexpr std::array<Names, 2> kOthers{
      {{"model.language_model.", "lm_head.weight"}, {"language_model.model.", "language_model.lm_head.weight"}}};
  for (const Names& names : kOthers) {
    if (weights_->shape(std::string(names.prefix) + "embed_tokens.weight") == nullptr) continue;
    file_.prefix = names.prefix;
    file_.head = names.head;
  }
}

/// Unties the embeddings if the config ties them, but the file has a logits matrix with other numbers. transformers 5
/// and later does the same.
void ModelFile::untie_different_head() {
  const std::string embeddings = file_.prefix + "embed_tokens.weight";
  const bool both = weights_->shape(file_.head) != nullptr && weights_->shape(embeddings) != nullptr;
  if (file_.config.embeddings == Embeddings::separate || !both) return;
  if (!same_numbers(*weights_, file_.head, embeddings)) file_.config.embeddings = Embeddings::separate;
}

void ModelFile::check_shape(const Parameter& parameter, const TensorPiece& at) const {
  const std::vector<std::int64_t>* found = weights_->shape(at.tensor);
  if (found == nullptr) {
    const bool separate = file_.layout == GateLayout::separate && parameter.name.ends_with(kGateProjection);
    fail(weights_->path(), "tensor '{}' is missing{}", at.tensor,
         separate ? ", which has the gate where the layout is separate" : "");
  }
  if (*found == at.shape) return;
  const std::string& path = weights_->path_of(at.tensor);
  const bool q = at.tensor.ends_with(kQProjection) && found->size() == 2 && (*found)[1] == at.shape[1];
  const std::string guess = q ? q_projection_guess(found->front(), file_.layout, file_.config) : "";
  if (!guess.empty()) {
    fail(path, "tensor '{}' is {}, the rows of layout {}; by the config they are {}, layout {}", at.tensor,
         io::shape_text(*found), guess, io::shape_text(at.shape), layout_text(file_.layout, file_.config));
  }
  fail(path, "tensor '{}' is {}, but the model's config makes it {}", at.tensor, io::shape_text(*found),
       io::shape_text(at.shape));
}

void ModelFile::check_names(const std::vector<TensorLocation>& used) const {
  std::set<std::string_view> known;
  for (const TensorLocation& at : used) {
    for (const TensorPiece& piece : at.pieces) known.insert(piece.tensor);
  }
  for (const std::string& name : weights_->names()) {
    const bool extra = gguf_ ? is_extra_tensor_in_gguf(name, file_) : is_extra_tensor(name, file_);
    if (!known.contains(name) && !extra) {
      fail(weights_->path_of(name), "tensor '{}' is not one of the model's", printable_name(name));
    }
  }
}

namespace {

/// Calls visit(row) for each row index that `piece` selects in its tensor, in the order of the parameter's rows.
template <class Visit>
void each_row(const TensorPiece& piece, std::int64_t width, const Visit& visit) {
  for (const std::int64_t row : piece.rows) visit(row);
  if (!piece.rows.empty()) return;
  const std::int64_t count = piece.count == 0 ? count_of(piece.shape) / width : piece.count;
  for (std::int64_t row = 0; row < count; ++row) visit(piece.begin + row * piece.step);
}

/// Returns `tensor` with its last two dimensions exchanged.
std::vector<float> transposed(const std::vector<float>& tensor, const std::vector<std::int64_t>& shape) {
  const std::int64_t columns = shape.back(), rows = shape[shape.size() - 2];
  std::vector<float> out(tensor.size());
  const float* from = tensor.data();
  float* to = out.data();
  for (const float* const end = from + tensor.size(); from < end; from += rows * columns, to += rows * columns) {
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < columns; ++c) to[c * rows + r] = from[r * columns + c];
    }
  }
  return out;
}

}  // namespace

void ModelFile::read_rows(const TensorLocation& at, const Parameter& parameter, float* out) const {
  if (at.is_whole_tensor()) return weights_->read(at.pieces.front().tensor, out);
  const std::int64_t width = parameter.shape.size() == 2 ? parameter.shape[1] : 1;
  std::map<std::string, std::vector<float>> tensors;
  float* to = out;
  for (const TensorPiece& piece : at.pieces) {
    const auto [found, is_new] = tensors.try_emplace(piece.tensor);
    std::vector<float>& tensor = found->second;
    if (is_new) {
      tensor.resize(static_cast<std::size_t>(count_of(piece.shape)));
      weights_->read(piece.tensor, tensor.data());
      if (at.transposed) tensor = transposed(tensor, piece.shape);
    }
    each_row(piece, width, [&](std::int64_t row) {
      const float* from = tensor.data() + row * width;
      for (std::int64_t c = 0; c < width; ++c, ++to) {
        *to = from[at.columns.empty() ? c : at.columns[static_cast<std::size_t>(c)]];
      }
    });
  }
  if (at.form == StoredForm::plain) return;
  for (std::int64_t i = 0; i < parameter.count; ++i) {
    if (!(out[i] < 0.0F)) {
      fail(weights_->path_of(at.pieces.front().tensor), "tensor '{}': element {} is {}, not below 0",
           at.pieces.front().tensor, i, out[i]);
    }
    out[i] = std::log(-out[i]);
  }
}

/// Returns the location of each parameter. Throws if a tensor is missing, is unknown or has a wrong shape.
std::vector<TensorLocation> ModelFile::checked(const ParameterTable& table) const {
  std::vector<TensorLocation> places;
  for (const Parameter& parameter : table.entries()) {
    places.push_back(stored(parameter));
    for (const TensorPiece& piece : places.back().pieces) check_shape(parameter, piece);
  }
  check_names(places);
  return places;
}

/// Reports what fraction of all parameters has been read, once `parameter` is read.
void ModelFile::report_read(const ParameterTable& table, const Parameter& parameter) const {
  io::report_work("reading ", weights_->path(),
                  static_cast<double>(parameter.offset + parameter.count) / static_cast<double>(table.total()));
}

void ModelFile::read_each(const std::function<void(const Parameter&, const float*)>& at) const {
  const ParameterTable table(file_.config);
  const std::vector<TensorLocation> places = checked(table);
  weights_->verify();
  std::vector<float> values;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const Parameter& parameter = table.entries()[i];
    values.resize(std::max(values.size(), static_cast<std::size_t>(parameter.count)));
    read_rows(places[i], parameter, values.data());
    at(parameter, values.data());
    report_read(table, parameter);
  }
}

void ModelFile::read_in_place(const std::function<void(const Parameter&, TensorLocation)>& matrix,
                              const std::function<void(const Parameter&, const float*)>& vector) const {
  const ParameterTable table(file_.config);
  std::vector<TensorLocation> places = checked(table);
  weights_->verify();
  std::vector<float> values;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const Parameter& parameter = table.entries()[i];
    if (is_matrix(parameter.kind)) {
      matrix(parameter, std::move(places[i]));
    } else {
      values.resize(static_cast<std::size_t>(parameter.count));
      read_rows(places[i], parameter, values.data());
      vector(parameter, values.data());
    }
    report_read(table, parameter);
  }
}

std::vector<float> ModelFile::read() const {
  const ParameterTable table(file_.config);
  const std::vector<TensorLocation> places = checked(table);
  weights_->verify();
  std::vector<float> out(static_cast<std::size_t>(table.total()));
  for (std::size_t i = 0; i < places.size(); ++i) {
    const Parameter& parameter = table.entries()[i];
    read_rows(places[i], parameter, out.data() + parameter.offset);
    report_read(table, parameter);
  }
  return out;
}

// --- writing -----------------------------------------------------------------------------------------------------

namespace {

/// Holds a tensor to be written.
struct WrittenTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  const float* parameter = nullptr;   ///< values of a tensor that is a single parameter; null for other tensors
  std::vector<float> fused;           ///< values of a tensor that combines several parameters; empty for other tensors
  std::vector<std::uint16_t> narrow;  ///< values converted to f16 or bf16; empty for f32

  const float* values() const { return parameter != nullptr ? parameter : fused.data(); }
};

/// Returns the tensors of a file to be written, with their names and shapes. Combines parameters that share a tensor.
std::vector<WrittenTensor> gather(const FileConfig& file, const float* parameters) {
  const ParameterTable table(file.config);
  std::vector<WrittenTensor> out;
  std::map<std::string, std::size_t> by_name;
  for (const Parameter& parameter : table.entries()) {
    // The location has exactly one piece. The library cannot write families that store a parameter in several tensors.
    const TensorPiece at = stored_in_directory(parameter, file, {}).pieces.front();
    const auto [place, first] = by_name.emplace(at.tensor, out.size());
    if (first) out.push_back({at.tensor, at.shape, nullptr, {}, {}});
    WrittenTensor& tensor = out[place->second];
    const float* from = parameters + parameter.offset;
    if (at.rows.empty()) {
      tensor.parameter = from;
      continue;
    }
    tensor.fused.resize(static_cast<std::size_t>(count_of(at.shape)));
    const std::int64_t width = parameter.shape[1];
    for (std::int64_t r = 0; r < parameter.shape[0]; ++r) {
      std::copy_n(from + r * width, width, tensor.fused.data() + at.rows[static_cast<std::size_t>(r)] * width);
    }
  }
  return out;
}

void narrow(WrittenTensor& tensor, DType dtype) {
  const auto count = static_cast<std::size_t>(count_of(tensor.shape));
  tensor.narrow.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const float x = tensor.values()[i];
    tensor.narrow.push_back(dtype == DType::bf16 ? to_bf16(x).bits : to_f16(x).bits);
    const float back = dtype == DType::bf16 ? to_f32(BFloat16{tensor.narrow[i]}) : to_f32(Float16{tensor.narrow[i]});
    require(std::isfinite(back), "tensor '{}': element {} is {}, more than {} holds", tensor.name, i, x,
            dtype_name(dtype));
  }
  tensor.fused = {};
}

}  // namespace

std::vector<TextFile> read_text_files(const std::string& directory) {
  constexpr std::size_t kMost_bytes = std::size_t{1} << 28;  // a tokenizer.json with 262144 tokens has about 32 MB
  std::vector<TextFile> out;
  for (const char* name : kTextFiles) {
    const std::string path = fmt::format("{}/{}", directory, name);
    if (io::exists(path)) out.push_back({name, io::read_text(path, kMost_bytes)});
  }
  return out;
}

void write_weights(const std::string& path, const FileConfig& file, const float* parameters) {
  const std::vector<WrittenTensor> tensors = gather(file, parameters);
  std::vector<io::TensorSource> sources;
  sources.reserve(tensors.size());
  for (const WrittenTensor& tensor : tensors)
    sources.push_back({tensor.name, DType::f32, tensor.shape, tensor.values()});
  io::write_safetensors(path, sources);
}

void write_model(const std::string& directory, const FileConfig& file, const std::vector<float>& parameters,
                 DType dtype, const std::vector<TextFile>& text_files) {
  require(dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16, "models are not written in {}",
          dtype_name(dtype));
  require_fusable(file.layout, file.config);
  FileConfig as_family = file;
  as_family.family = &public_family(file);
  std::vector<WrittenTensor> tensors = gather(as_family, parameters.data());
  std::vector<io::TensorSource> sources;
  const double narrowing = dtype == DType::f32 ? 0.0 : 0.5;  // fraction of the work that is spent on conversion
  for (WrittenTensor& tensor : tensors) {
    if (dtype != DType::f32) narrow(tensor, dtype);
    const double narrowed = static_cast<double>(sources.size() + 1) / static_cast<double>(tensors.size());
    io::report_work("writing ", directory, narrowing * narrowed);
    const void* data = dtype == DType::f32 ? static_cast<const void*>(tensor.values()) : tensor.narrow.data();
    sources.push_back({tensor.name, dtype, tensor.shape, data});
  }
  std::vector<std::string> names{kConfig, kModel, kModelingFile};
  for (const TextFile& text : text_files) names.push_back(text.name);
  io::StagedDirectory staged(directory, names);
  for (const auto& [name, text] : text_files) io::write_text(fmt::format("{}/{}", staged.path(), name), text);
  write_config_files(staged.path(), write_public_config(file, dtype));
  io::write_safetensors(staged.path() + "/" + kModel, sources, {}, [&](double written) {
    io::report_work("writing ", directory, narrowing + (1.0 - narrowing) * written);
  });
  staged.commit();
}

}  // namespace headgate::models
