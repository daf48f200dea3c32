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
#include "models/io/file_progress.hpp"
#include "models/io/gguf.hpp"

// Models in files, of every family and format that is read: a directory with config.json and model.safetensors, or
// with shards that model.safetensors.index.json lists, or a GGUF file.

namespace headgate::models {

/// The tensors of a model's files, by their names there.
class WeightFiles {
 public:
  virtual ~WeightFiles() = default;

  /// What messages about missing tensors name.
  virtual const std::string& path() const = 0;
  virtual std::vector<std::string> names() const = 0;
  /// Row-major; null if there is no such tensor.
  virtual const std::vector<std::int64_t>* shape(const std::string& name) const = 0;
  /// The file that has the tensor.
  virtual const std::string& path_of(const std::string& name) const = 0;
  /// out(numel) = its numbers in f32. Throws io::FileError for types that are not widened and numbers that are not
  /// finite.
  virtual void read(const std::string& name, float* out) const = 0;
  /// Throws io::FileError where a checksum does not fit.
  virtual void verify() const {}
};

/// A parameter's place in a file: the rows of a tensor.
struct StoredRows {
  std::string tensor;
  std::vector<std::int64_t> shape;  ///< that the tensor must have
  std::vector<std::int64_t> rows;   ///< row r of the parameter is row rows[r] of the tensor; empty: as they stand
};

/// A model whose config has been read.
class ModelFile {
 public:
  /// Opens a directory or a GGUF file. Throws io::FileError, naming what is wrong; so does read().
  explicit ModelFile(const std::string& path);

  const DecoderConfig& config() const { return file_.config; }
  GateLayout layout() const { return file_.layout; }
  const Family& family() const { return *family_; }
  /// The GGUF file, for its tokenizer and other values; null for a directory.
  const io::GgufFile* gguf() const { return gguf_.get(); }

  /// All parameters, (total) as ParameterTable(config()) lays them out. Nothing is allocated before all tensors are
  /// known to be there. progress(fraction) is called after each parameter.
  std::vector<float> read(const io::FileProgress& progress = {}) const;
  /// Throws io::FileError where a tensor is missing, is not one of the model's or has another shape than it must.
  void check_tensors() const { checked(ParameterTable(file_.config)); }
  /// at(parameter, its numbers in f32) for each parameter, one after the other in the table's order; the numbers are
  /// there during the call. Otherwise as read().
  void read_each(const std::function<void(const Parameter&, const float*)>& at) const;

 private:
  std::vector<StoredRows> checked(const ParameterTable& table) const;
  StoredRows stored(const Parameter& parameter) const;
  void check_shape(const Parameter& parameter, const StoredRows& at) const;
  void check_names(const std::vector<StoredRows>& used) const;
  void read_rows(const StoredRows& at, const Parameter& parameter, float* out) const;

  FileConfig file_;
  const Family* family_ = nullptr;
  std::shared_ptr<const io::GgufFile> gguf_;
  std::unique_ptr<WeightFiles> weights_;
};

/// Whether ModelFile could open `path`, by its name and kind alone: a directory with a config.json, or a file that
/// begins as GGUF does.
bool is_gguf(const std::string& path);

/// Files of a directory that say how text becomes tokens and how it is generated: what a model's own files lack.
inline constexpr std::array kTextFiles{
    "tokenizer.json", "tokenizer_config.json",  "special_tokens_map.json", "tokenizer.model", "vocab.json",
    "merges.txt",     "generation_config.json", "chat_template.jinja"};

/// Returns the files that outputs must not overwrite in `path`, a model's directory or GGUF file: its weights, and all
/// files of known names, which need not exist.
std::vector<std::string> files_of_model(const std::string& path);

/// One of kTextFiles.
struct TextFile {
  std::string name, text;
};

/// Reads those of kTextFiles that a directory has. Throws io::FileError.
std::vector<TextFile> read_text_files(const std::string& directory);

/// Writes a model to `directory` as Hugging Face has it: config.json and model.safetensors in f32, f16 or bf16, rounded
/// to nearest even, and `text_files`. The directory is replaced whole or not at all, and never where it has files of
/// other names. Throws io::WriteError, Error where the layout does not fit the config's gate, and where f16 cannot hold
/// a number. progress(fraction) is called after each tensor.
void write_model(const std::string& directory, const FileConfig& file, const std::vector<float>& parameters,
                 DType dtype, const std::vector<TextFile>& text_files = {}, const io::FileProgress& progress = {});

}  // namespace headgate::models
