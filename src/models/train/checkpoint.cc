// SPDX-License-Identifier: Apache-2.0
#include "models/train/checkpoint.hpp"

#include <utility>

#include "headgate/error.hpp"
#include "models/families/config_file.hpp"
#include "models/families/model_file.hpp"
#include "models/families/modeling_code.hpp"
#include "models/families/tensor_file.hpp"
#include "models/io/input_file.hpp"
#include "models/io/staged_directory.hpp"
#include "models/io/staged_file.hpp"
#include "models/train/settings.hpp"

namespace headgate::train {
namespace {

constexpr const char* kFirst = ".first_moment";
constexpr const char* kSecond = ".second_moment";
constexpr std::size_t kMaxState = std::size_t{1} << 24;
const std::vector<std::string> kFiles = {kCheckpointConfig,       models::kModelingFile,   kCheckpointModel,
                                         kCheckpointOptimizer,    kCheckpointState,        "tokenizer.json",
                                         "tokenizer_config.json", "generation_config.json"};

std::string file_of(const std::string& directory, const char* name) { return directory + "/" + name; }

/// Returns the table of the parameters that the checkpoint's trainer state says have moments.
models::ParameterTable with_moments(const Checkpoint& checkpoint, const models::ParameterTable& table,
                                    const std::string& state_path) {
  if (checkpoint.trainer_state.empty()) return table;
  try {
    return trained_parameters(table, read_trained_part(checkpoint.trainer_state));
  } catch (const Error& error) {
    io::fail(state_path, "{}", error.what());
  }
}

}  // namespace

void save_checkpoint(const std::string& directory, const CheckpointView& checkpoint) {
  io::StagedDirectory staged(directory, kFiles);
  models::FileConfig file = models::public_file(checkpoint.config);
  if (checkpoint.bos) file.bos = *checkpoint.bos == Bos::on ? kBos : models::kNoBos;
  models::write_config_files(staged.path(), models::write_public_config(file, DType::f32));
  models::write_weights(file_of(staged.path(), kCheckpointModel), file, checkpoint.parameters);
  if (checkpoint.first_moment != nullptr && checkpoint.second_moment != nullptr) {
    models::write_tensors(file_of(staged.path(), kCheckpointOptimizer),
                          trained_parameters(checkpoint.table, checkpoint.trained),
                          {{kFirst, checkpoint.first_moment}, {kSecond, checkpoint.second_moment}});
  }
  if (!checkpoint.trainer_state.empty())
    io::write_text(file_of(staged.path(), kCheckpointState), checkpoint.trainer_state);
  for (const NamedText& text : checkpoint.text_files) {
    io::write_text(file_of(staged.path(), text.name.c_str()), text.text);
  }
  staged.commit();
}

const std::vector<std::string>& checkpoint_files() { return kFiles; }

void check_checkpoint_replaceable(const std::string& directory) { io::check_replaceable(directory, kFiles); }

std::int64_t checkpoint_step(const std::string& directory) {
  const std::string path = file_of(io::present_directory(directory), kCheckpointState);
  try {
    return read_state(io::read_text(path, kMaxState)).step;
  } catch (const Error& error) {
    io::fail(path, "{}", error.what());
  }
}

std::string read_trainer_state(const std::string& directory) {
  return io::read_run_state(io::present_directory(directory));
}

Checkpoint load_checkpoint(const std::string& directory, CheckpointParts parts) {
  const std::string from = io::present_directory(directory);
  const models::ModelFile file(from);
  Checkpoint out;
  out.config = file.config();
  out.parameters = file.read();
  const models::ParameterTable table(out.config);
  const std::string state_path = file_of(from, kCheckpointState);
  out.trainer_state = io::read_run_state(from);
  if (parts == CheckpointParts::all) {
    auto moments = models::read_tensors(file_of(from, kCheckpointOptimizer), with_moments(out, table, state_path),
                                        {kFirst, kSecond}, models::StoredAs::f32);
    out.first_moment = std::move(moments[0]);
    out.second_moment = std::move(moments[1]);
    if (out.trainer_state.empty()) out.trainer_state = io::read_text(state_path, kMaxState);
  }
  return out;
}

}  // namespace headgate::train
