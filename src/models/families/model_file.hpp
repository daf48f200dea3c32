// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "headgate/tensor.hpp"
#include "models/decoder/parameters.hpp"
#include "models/families/family.hpp"
#include "models/families/tensor_location.hpp"
#include "models/io/file_progress.hpp"
#include "models/io/gguf.hpp"

// Reads and writes models of every supported family and format: a directory with config.json and model.safetensors, or
// with shards that model.safetensors.index.json lists, or a GGUF file.

namespace headgate::models {

/// Views a tensor's numbers where they lie in a mapped file.
struct StoredTensor {
  const io::GgufFormat* format = nullptr;
  const std::uint8_t* data = nullptr;
  const std::uint8_t* scales = nullptr;  ///< of a format with scales apart
  std::int64_t numel = 0;
};

/// Reads the tensors of a model's files, by their names there.
class WeightFiles {
 public:
  virtual ~WeightFiles() = default;

  /// Returns the path that messages about missing tensors name.
  virtual const std::string& path() const = 0;
  virtual std::vector<std::string> names() const = 0;
  /// Returns the row-major shape; null if there is no such tensor.
  virtual const std::vector<std::int64_t>* shape(const std::string& name) const = 0;
  /// Returns the file that has the tensor.
  virtual const std::string& path_of(const std::string& name) const = 0;
  /// out(numel) = the tensor's numbers in f32. Throws io::FileError for types that are not widened and numbers that are
  /// not finite.
  virtual void read(const std::string& name, float* out) const = 0;
  /// Throws io::FileError if a checksum does not match.
  virtual void verify() const {}

  /// Returns whether matrices have fewer bits a number than 16, or, in a GGUF file, than 32.
  virtual bool stores_narrow_matrices() const = 0;
  /// Maps a tensor, after checking that its numbers are finite. Throws as read() does.
  virtual StoredTensor stored(const std::string& name) const = 0;
  /// Throws io::FileError if a file that is mapped has become shorter, before tensors are read through their pointers.
  virtual void check_whole() const = 0;
};

/// Opens model.safetensors of a directory, or the shards that an index lists. Throws io::FileError.
std::shared_ptr<const WeightFiles> open_safetensors(const std::string& directory);
std::shared_ptr<const WeightFiles> open_gguf(std::shared_ptr<const io::GgufFile> file);

/// Opens a model and reads its config.
class ModelFile {
 public:
  /// Opens a directory or a GGUF file. Throws io::FileError, naming what is wrong; so does read().
  explicit ModelFile(const std::string& path);

  const DecoderConfig& config() const { return file_.config; }
  GateLayout layout() const { return file_.layout; }
  const Family& family() const { return *family_; }
  /// Returns the GGUF file, for its tokenizer and other values; null for a directory.
  const io::GgufFile* gguf() const { return gguf_.get(); }

  /// Returns all parameters, (total) as ParameterTable(config()) lays them out. Checks that all tensors exist before it
  /// allocates. Calls io::report_work after each parameter, as the functions below do.
  std::vector<float> read() const;
  /// Throws io::FileError if a tensor is missing, is unknown, or has a wrong shape.
  void check_tensors() const { checked(ParameterTable(file_.config)); }
  /// Calls at(parameter, its numbers in f32) for each parameter in the table's order. The numbers are valid during the
  /// call. Otherwise as read().
  void read_each(const std::function<void(const Parameter&, const float*)>& at) const;

  /// Returns whether matrices are best read in place: those of a GGUF file that are not f32, and blocks of MXFP4.
  bool stores_narrow_matrices() const { return weights_->stores_narrow_matrices(); }
  /// Calls matrix(parameter, location) for each matrix and vector(parameter, numbers) for each other parameter, in the
  /// table's order. The tensors of matrices are those of weights().
  void read_in_place(const std::function<void(const Parameter&, TensorLocation)>& matrix,
                     const std::function<void(const Parameter&, const float*)>& vector) const;
  /// Returns the files that the tensors are in.
  std::shared_ptr<const WeightFiles> weights() const { return weights_; }

 private:
  std::vector<TensorLocation> checked(const ParameterTable& table) const;
  void untie_different_head();
  void report_read(const ParameterTable& table, const Parameter& parameter) const;
  TensorLocation stored(const Parameter& parameter) const;
  void check_shape(const Parameter& parameter, const TensorPiece& at) const;
  void check_names(const std::vector<TensorLocation>& used) const;
  void read_rows(const TensorLocation& at, const Parameter& parameter, float* out) const;
  void find_prefix();

  FileConfig file_;
  const Family* family_ = nullptr;
  std::shared_ptr<const io::GgufFile> gguf_;
  std::shared_ptr<const WeightFiles> weights_;
};

/// Returns whether `path` is something that ModelFile opens, by its name and kind only: a directory with a config.json,
/// or a file that begins as GGUF does.
bool is_gguf(const std::string& path);

/// Files of a directory that a tokenizer and generation need, in addition to the model's own files.
inline constexpr std::array kTextFiles{
    "tokenizer.json", "tokenizer_config.json",  "special_tokens_map.json", "tokenizer.model",   "vocab.json",
    "merges.txt",     "generation_config.json", "chat_template.jinja",     "chat_template.json"};

/// Returns the files that outputs must not overwrite in `path`, a model's directory or GGUF file: its weights, and all
/// files of known names, which need not exist.
std::vector<std::string> files_of_model(const std::string& path);

/// One of kTextFiles.
struct TextFile {
  std::string name, text;
};

/// Reads those of kTextFiles that exist in a directory. Throws io::FileError.
std::vector<TextFile> read_text_files(const std::string& directory);

/// Writes all parameters (total) of a model to a safetensors file in f32, as file.family stores them, whole or not at
/// all. Throws io::FileError.
void write_weights(const std::string& path, const FileConfig& file, const float* parameters);

/// Writes a model to `directory` in Hugging Face's layout: config.json and model.safetensors in f32, f16 or bf16,
/// rounded to nearest even, and `text_files`. The directory is replaced whole or not at all, and never if it has files
/// of other names. Throws io::WriteError, and Error if the layout does not suit the config's gate or if f16 cannot hold
/// a number. Calls progress(fraction) after each tensor.
void write_model(const std::string& directory, const FileConfig& file, const std::vector<float>& parameters,
                 DType dtype, const std::vector<TextFile>& text_files = {}, const io::FileProgress& progress = {});

}  // namespace headgate::models
