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
#include "models/io/gguf.hpp"

// Reads and writes models of all supported families and formats:
// - a directory with config.json and model.safetensors
// - a directory with config.json and the shards that model.safetensors.index.json lists
// - a GGUF file

namespace headgate::models {

/// Views a tensor's numbers in a mapped file.
struct StoredTensor {
  const io::GgufFormat* format = nullptr;
  const std::uint8_t* data = nullptr;
  const std::uint8_t* scales = nullptr;  ///< scales, if the format stores them separately; otherwise null
  std::int64_t numel = 0;
};

/// Reads tensors from a model's files, by their names in the files.
class WeightFiles {
 public:
  virtual ~WeightFiles() = default;

  /// Returns the path for messages about missing tensors: the file, or the index that lists the shards.
  virtual const std::string& path() const = 0;
  virtual std::vector<std::string> names() const = 0;
  /// Returns a tensor's row-major shape, or null if there is no such tensor.
  virtual const std::vector<std::int64_t>* shape(const std::string& name) const = 0;
  /// Returns the path of the file that contains the tensor.
  virtual const std::string& path_of(const std::string& name) const = 0;
  /// Reads a tensor's numbers as f32 into out(numel). Throws io::FileError for types that cannot be widened and for
  /// numbers that are not finite.
  virtual void read(const std::string& name, float* out) const = 0;
  /// Verifies the checksums of all files. Throws io::FileError if one does not match.
  virtual void verify() const {}

  /// Returns whether any matrix is stored in a narrow format:
  /// - MXFP4 in a directory
  /// - any format but F32 in a GGUF file
  virtual bool stores_narrow_matrices() const = 0;
  /// Returns a view of a tensor in its mapped file, after checking that all numbers are finite. Throws the errors of
  /// read().
  virtual StoredTensor stored(const std::string& name) const = 0;
  /// Throws io::FileError if a mapped file has become shorter. Call it before reading through the pointers of stored().
  virtual void check_whole() const = 0;
};

/// Opens model.safetensors of a directory, or the shards that an index lists. Throws io::FileError.
std::shared_ptr<const WeightFiles> open_safetensors(const std::string& directory);
std::shared_ptr<const WeightFiles> open_gguf(std::shared_ptr<const io::GgufFile> file);

/// Opens a model and reads its config.
class ModelFile {
 public:
  /// Opens a directory or a GGUF file. This function and read() throw io::FileError that names the problem.
  explicit ModelFile(const std::string& path);

  const DecoderConfig& config() const { return file_.config; }
  GateLayout layout() const { return file_.layout; }
  const Family& family() const { return *family_; }
  /// Returns the GGUF file, for its tokenizer and other values, or null for a directory.
  const io::GgufFile* gguf() const { return gguf_.get(); }

  /// Returns all parameters in the layout of ParameterTable(config()). Checks all tensors before allocating. Like
  /// read_each() and read_in_place(), calls io::report_work after each parameter.
  std::vector<float> read() const;
  /// Throws io::FileError if a tensor is missing, is unknown, or has the wrong shape.
  void check_tensors() const { checked(ParameterTable(file_.config)); }
  /// Calls at(parameter, values) for each parameter in the order of the table. `values` are in f32 and valid only
  /// during the call. Throws the errors of read().
  void read_each(const std::function<void(const Parameter&, const float*)>& at) const;

  /// Returns whether matrices should be read in place from the mapped file, instead of being widened to f32 first. True
  /// for a GGUF file with a matrix that is not f32, and for a directory with MXFP4 blocks.
  bool stores_narrow_matrices() const { return weights_->stores_narrow_matrices(); }
  /// Calls one of two functions for each parameter, in the order of the parameter table:
  /// - matrix(parameter, location) for a matrix; the location names tensors of weights().
  /// - vector(parameter, numbers) for any other parameter.
  void read_in_place(const std::function<void(const Parameter&, TensorLocation)>& matrix,
                     const std::function<void(const Parameter&, const float*)>& vector) const;
  /// Returns the files that contain the tensors.
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

/// Returns whether `path` is a regular file that begins with the bytes "GGUF".
bool is_gguf(const std::string& path);

/// Names of a directory's tokenizer and generation files, which are copied along with a model.
inline constexpr std::array kTextFiles{
    "tokenizer.json", "tokenizer_config.json",  "special_tokens_map.json", "tokenizer.model",   "vocab.json",
    "merges.txt",     "generation_config.json", "chat_template.jinja",     "chat_template.json"};

/// Returns the files that outputs must not overwrite: the model's weights, config and tokenizer files. Includes config
/// and tokenizer files that do not exist yet. `path` is the model's directory or GGUF file.
std::vector<std::string> files_of_model(const std::string& path);

/// Holds the name and content of one of kTextFiles.
struct TextFile {
  std::string name, text;
};

/// Reads the files of kTextFiles that exist in a directory. Throws io::FileError.
std::vector<TextFile> read_text_files(const std::string& directory);

/// Writes all parameters of a model to a safetensors file in f32, in the format of file.family. The file is written
/// completely or not at all. Throws io::FileError.
void write_weights(const std::string& path, const FileConfig& file, const float* parameters);

/// Writes a model to `directory` in Hugging Face's layout: config.json, model.safetensors and `text_files`. Numbers are
/// f32, or rounded to nearest even to f16 or bf16. Calls io::report_work after each tensor.
///
/// Replaces the directory completely or not at all. Does not replace a directory that contains files of other names.
/// Throws io::WriteError. Throws Error if the layout does not fit the config's gate, or if a number exceeds the range
/// of the type.
void write_model(const std::string& directory, const FileConfig& file, const std::vector<float>& parameters,
                 DType dtype, const std::vector<TextFile>& text_files = {});

}  // namespace headgate::models
