// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "models/data/data.hpp"
#include "models/decoder/decoder.hpp"
#include "models/evaluate/evaluation.hpp"
#include "models/train/checkpoint.hpp"
#include "models/train/process_group.hpp"
#include "models/train/settings.hpp"
#include "models/train/spikes.hpp"

namespace headgate::train {

/// Thrown if a loss, gradient, parameter or moment is not finite. The message is one line, "step N: …". If step()
/// throws, the parameters are unchanged.
class Diverged : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct StepReport {
  std::int64_t step = 0;                  ///< number of the step, from 1 on
  double loss = 0.0;                      ///< mean over the step's tokens, in nats, before the update
  std::optional<double> bits_per_byte{};  ///< the loss in bits per byte of text; empty if the text is unknown
  double grad_norm = 0.0;                 ///< norm of the gradient before clipping
  double lr = 0.0;
  std::int64_t tokens = 0;  ///< tokens seen since step 1
  double seconds = 0.0;     ///< duration of the step
  bool spike = false;       ///< a loss spike begins at this step
};

/// Throws Error if the processes of the group cannot divide the sequences of a pass evenly.
void require_equal_shares(const TrainSettings& settings, const ProcessGroup& group);

/// Returns the planned memory of a run in this process of the group, in bytes by purpose. Allocates nothing. Throws
/// Error if config or settings are invalid or the sizes overflow.
std::vector<models::MemoryItem> training_memory(const models::DecoderConfig& config, const TrainSettings& settings,
                                                const SequenceSource& source, const ProcessGroup& group);

/// Returns the items of training_memory() for parameters, gradients and moments, which do not depend on the data.
std::vector<models::MemoryItem> parameter_memory(const models::DecoderConfig& config, TrainedPart trained);

/// Trains a model: holds its parameters and AdamW's moments, and takes training steps on settings.threads threads. In a
/// group of n processes, each process holds all parameters and computes 1/n of every batch: rank 0 the first part, rank
/// 1 the next, and so on. Gradients and losses are summed over the processes, so that all take the same step.
class Trainer {
 public:
  /// Starts a new run with parameters initialised from settings.seed. `source` and `group` must outlive the trainer.
  /// Throws Error if config, settings, source and group are inconsistent.
  Trainer(const models::DecoderConfig& config, const TrainSettings& settings, const SequenceSource& source,
          ProcessGroup& group = alone());

  /// Starts a new run with the given parameters.
  Trainer(const models::DecoderConfig& config, const TrainSettings& settings, std::vector<float> parameters,
          const SequenceSource& source, ProcessGroup& group = alone());

  /// Resumes from a checkpoint with the trainer state `state`. Throws Error if the data differs from the run's.
  Trainer(Checkpoint checkpoint, const TrainerState& state, const SequenceSource& source,
          ProcessGroup& group = alone());

  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Makes step() and evaluate() cancellable: they call `cancelled` between parts of their passes, and throw Cancelled
  /// if it returns true. An empty function never cancels. Only for a process that trains alone, because the other
  /// processes of a group would wait forever.
  void cancel_when(std::function<bool()> cancelled);

  /// Takes a step: forward and backward passes over its batches, clipping, AdamW. If it throws Diverged or Cancelled,
  /// the parameters are unchanged, and save() still saves the state before the step.
  StepReport step();

  /// Evaluates held-out sequences in the process that leads the group. Throws Error if eval_tokens is 0. Throws
  /// Cancelled as cancel_when() describes.
  Evaluation evaluate();

  /// Saves a checkpoint. Throws io::FileError, or Diverged if a number is not finite; the previous checkpoint then
  /// remains.
  void save(const std::string& directory) const;

  /// Throws Diverged if a parameter or moment is not finite.
  void require_finite() const;

  std::int64_t steps_done() const { return step_; }
  bool finished() const { return step_ >= settings_.schedule.steps; }
  const TrainSettings& settings() const { return settings_; }
  const models::DecoderConfig& config() const { return decoder_->config(); }
  const std::vector<float>& parameters() const { return parameters_; }
  std::int64_t spikes() const { return spikes_.count(); }
  double flops_per_step() const;  ///< FLOPs of a step, summed over all processes
  std::int64_t trained_count() const { return trained_.total(); }
  ProcessGroup& group() const { return group_; }
  TrainerState state() const;

  std::vector<models::MemoryItem> memory_plan() const { return training_memory(config(), settings_, source_, group_); }

 private:
  /// Trained parameters that are adjacent in the decoder's table.
  struct Range {
    std::int64_t offset = 0;
    std::int64_t count = 0;
  };
  /// A range of adjacent trained parameters. Either all of them have weight decay, or none has.
  struct Segment : Range {
    std::int64_t moments = 0;  ///< index in first_moment_ and second_moment_ where the segment begins
    bool decays = false;
  };

  void plan();
  void plan_update();
  double accumulate_gradients();
  void update(double lr, double gradient_scale, std::int64_t step);
  double squared_norm(const float* numbers, std::int64_t count) const;
  double gradient_norm() const;
  std::optional<double> bits_per_byte(double loss) const;

  TrainSettings settings_;
  const SequenceSource& source_;
  ProcessGroup& group_;
  std::function<bool()> cancelled_;  // callable at any time, because decoders call it through a pointer
  std::unique_ptr<models::SequenceDecoder<float>> decoder_;
  models::ParameterTable trained_;
  std::optional<HeldOutEvaluator> evaluator_;
  std::vector<float> parameters_;      // (total)
  std::vector<float> gradients_;       // (total)
  std::vector<float> first_moment_;    // AdamW's first moments, one per trained parameter
  std::vector<float> second_moment_;   // AdamW's second moments, one per trained parameter
  std::vector<std::int32_t> tokens_;   // (own batch,T)
  std::vector<std::int32_t> targets_;  // (own batch,T)
  std::vector<Range> ranges_;
  std::vector<Segment> segments_;
  SpikeCounter spikes_;
  std::int64_t step_ = 0;
};

}  // namespace headgate::train
