// SPDX-License-Identifier: Apache-2.0
#include "models/train/trainer.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <utility>

#include "library/core/check.hpp"
#include "library/core/stopwatch.hpp"
#include "models/layers/adamw.hpp"

namespace headgate::train {

namespace {

bool never() { return false; }

[[noreturn]] void throw_diverged(std::int64_t step, const char* what, double value) {
  const double shown = std::isnan(value) ? std::abs(value) : value;  // the sign of NaN means nothing
  throw Diverged(fmt::format("step {}: {} is {}", step, what, shown));
}

const TrainSettings& validated(const TrainSettings& settings) {
  validate(settings);
  return settings;
}

/// Plans the evaluations during a run. Requires settings.eval_tokens > 0.
EvaluationPlan evaluation_plan(const TrainSettings& settings, const SequenceSource& source) {
  return plan_evaluation(source.held_out_count(), settings.eval_tokens / settings.seq_len, settings.batch);
}

models::Purpose purpose_of(const TrainSettings& settings) {
  return settings.trained == TrainedPart::gates ? models::Purpose::train_gates : models::Purpose::train;
}

/// Returns the shape of this process's share of a batch.
models::BatchShape own_batch(const TrainSettings& settings, const ProcessGroup& group) {
  require_equal_shares(settings, group);
  return {settings.batch / group.size(), settings.seq_len};
}

}  // namespace

void require_equal_shares(const TrainSettings& settings, const ProcessGroup& group) {
  require(settings.batch % group.size() == 0, "--batch {} is not a multiple of the number of processes, {}",
          settings.batch, group.size());
}

std::vector<models::MemoryItem> parameter_memory(const models::DecoderConfig& config, TrainedPart trained) {
  const models::ParameterTable table(config);
  const auto bytes = [](std::int64_t numbers) { return static_cast<std::size_t>(numbers) * sizeof(float); };
  return {{"parameters", bytes(table.total())},
          {"gradients", bytes(table.total())},
          {"optimizer moments", bytes(2 * trained_parameters(table, trained).total())}};
}

std::vector<models::MemoryItem> training_memory(const models::DecoderConfig& config, const TrainSettings& settings,
                                                const SequenceSource& source, const ProcessGroup& group) {
  validate(settings);
  const models::BatchShape shape = own_batch(settings, group);
  const std::size_t tokens = shape.batch * shape.seq;
  std::vector<models::MemoryItem> items = parameter_memory(config, settings.trained);
  items.push_back({"tokens and targets", 2 * tokens * sizeof(std::int32_t)});
  for (auto& item : models::planned_memory(config, shape, purpose_of(settings), settings.precision)) {
    items.push_back(std::move(item));
  }
  if (settings.eval_tokens > 0 && group.leads()) {
    std::size_t bytes = 0;
    const EvaluationPlan plan = evaluation_plan(settings, source);
    for (const auto& item : evaluation_memory(config, source, plan, metrics::default_metrics())) bytes += item.bytes;
    items.push_back({"evaluation", bytes});
  }
  return items;
}

Trainer::Trainer(const models::DecoderConfig& config, const TrainSettings& settings, const SequenceSource& source,
                 ProcessGroup& group)
    : Trainer(config, settings, std::vector<float>(models::parameter_count(config)), source, group) {
  models::initialise(parameters_.data(), decoder_->table(), config, settings.seed);
}

Trainer::Trainer(const models::DecoderConfig& config, const TrainSettings& settings, std::vector<float> parameters,
                 const SequenceSource& source, ProcessGroup& group)
    : settings_(validated(settings)),
      source_(source),
      group_(group),
      cancelled_(never),
      decoder_(models::make_decoder(config, own_batch(settings, group), purpose_of(settings), settings.precision,
                                    {.threads = settings.threads, .cancelled = &cancelled_})),
      trained_(trained_parameters(decoder_->table(), settings.trained)),
      parameters_(std::move(parameters)),
      first_moment_(trained_.total()),
      second_moment_(trained_.total()) {
  plan();
}

Trainer::Trainer(Checkpoint checkpoint, const TrainerState& state, const SequenceSource& source, ProcessGroup& group)
    : settings_(validated(state.settings)),
      source_(source),
      group_(group),
      cancelled_(never),
      decoder_(models::make_decoder(checkpoint.config, own_batch(settings_, group), purpose_of(settings_),
                                    settings_.precision, {.threads = settings_.threads, .cancelled = &cancelled_})),
      trained_(trained_parameters(decoder_->table(), settings_.trained)),
      parameters_(std::move(checkpoint.parameters)),
      first_moment_(std::move(checkpoint.first_moment)),
      second_moment_(std::move(checkpoint.second_moment)),
      step_(state.step) {
  const std::size_t moments = trained_.total();
  require(first_moment_.size() == moments && second_moment_.size() == moments,
          "the checkpoint has {} and {} moments but {} parameters are trained", first_moment_.size(),
          second_moment_.size(), moments);
  require(state.data_fingerprint == source.fingerprint(), "the data differs from what the run was trained on");
  spikes_.restore(state.recent_losses, state.spikes, state.inside_spike);
  plan();
}

void Trainer::plan() {
  require(source_.seq_len() == settings_.seq_len, "the data's sequences have {} tokens but the run's {}",
          source_.seq_len(), settings_.seq_len);
  require(config().vocab >= source_.vocab(), "vocab is {} but {} has tokens up to {}", config().vocab, source_.name(),
          source_.vocab() - 1);
  require(std::ssize(parameters_) == decoder_->table().total(), "{} parameters were given but the model has {}",
          parameters_.size(), decoder_->table().total());
  gradients_.resize(parameters_.size());
  tokens_.resize(own_batch(settings_, group_).batch * settings_.seq_len);
  targets_.resize(tokens_.size());
  plan_update();
  if (settings_.eval_tokens > 0 && group_.leads()) {
    evaluator_.emplace(config(), source_, evaluation_plan(settings_, source_), metrics::default_metrics(),
                       decoder_->context());
  }
}

/// Merges adjacent trained parameters into ranges_. Splits each range into segments_ whose parameters all have weight
/// decay, or all have none.
void Trainer::plan_update() {
  const auto ends_at = [](const Range& range) { return range.offset + range.count; };
  auto next = trained_.entries().begin();  // its parameters have the order of the decoder's table
  for (const models::Parameter& parameter : decoder_->table().entries()) {
    if (next == trained_.entries().end() || next->name != parameter.name) continue;
    const bool joins = !ranges_.empty() && ends_at(ranges_.back()) == parameter.offset;
    const bool decays = models::decays(parameter.kind);
    if (!joins) ranges_.push_back({parameter.offset, 0});
    if (!joins || segments_.back().decays != decays) segments_.push_back({{parameter.offset, 0}, next->offset, decays});
    ranges_.back().count += parameter.count;
    segments_.back().count += parameter.count;
    ++next;
  }
}

double Trainer::accumulate_gradients() {
  const std::int64_t T = settings_.seq_len;
  const std::int64_t own = own_batch(settings_, group_).batch;
  const double share = 1.0 / static_cast<double>(settings_.accumulate * group_.size());
  double loss = 0.0;
  std::fill(gradients_.begin(), gradients_.end(), 0.0F);
  for (std::int64_t pass = 0; pass < settings_.accumulate; ++pass) {
    const std::int64_t first = (step_ * settings_.accumulate + pass) * settings_.batch + group_.rank() * own;
    for (std::int64_t b = 0; b < own; ++b) {
      const std::int64_t sequence = first + b;
      source_.training_sequence(tokens_.data() + b * T, targets_.data() + b * T, sequence);
    }
    loss += share *
            decoder_->loss_and_gradients(gradients_.data(), parameters_.data(), tokens_.data(), targets_.data(), share);
  }
  for (const Range& range : ranges_) group_.sum(gradients_.data() + range.offset, range.count);
  return group_.sum(loss);
}

void Trainer::update(double lr, double gradient_scale, std::int64_t step) {
  layers::AdamWOptions options;
  options.lr = lr;
  options.beta1 = settings_.beta1;
  options.beta2 = settings_.beta2;
  options.eps = settings_.eps;
  options.gradient_scale = gradient_scale;
  options.step = step;
  for (const Segment& segment : segments_) {
    options.weight_decay = segment.decays ? settings_.weight_decay : 0.0;
    const auto part = [&segment](std::vector<float>& numbers, std::int64_t begin) {
      return View<float, 1>(numbers.data() + begin, {segment.count});
    };
    layers::adamw_step(part(parameters_, segment.offset), part(first_moment_, segment.moments),
                       part(second_moment_, segment.moments), part(gradients_, segment.offset), options,
                       decoder_->context());
  }
}

double Trainer::squared_norm(const float* numbers, std::int64_t count) const {
  return layers::squared_norm(View<const float, 1>(numbers, {count}), decoder_->context());
}

/// Returns the norm of the gradient of the trained parameters.
double Trainer::gradient_norm() const {
  double square = 0.0;
  for (const Range& range : ranges_) square += squared_norm(gradients_.data() + range.offset, range.count);
  return std::sqrt(square);
}

/// Converts the loss of the next step to bits per byte of text, over the sequences of all processes.
std::optional<double> Trainer::bits_per_byte(double loss) const {
  const std::int64_t sequences = settings_.batch * settings_.accumulate;
  std::int64_t bytes = 0;
  for (std::int64_t i = 0; i < sequences; ++i) {
    const std::optional<std::int64_t> more = source_.training_bytes(step_ * sequences + i);
    if (!more) return std::nullopt;
    bytes += *more;
  }
  if (bytes == 0) return std::nullopt;
  const auto tokens = static_cast<double>(settings_.tokens_per_step());
  return loss * (tokens / static_cast<double>(bytes)) / std::numbers::ln2;
}

void Trainer::cancel_when(std::function<bool()> cancelled) { cancelled_ = cancelled ? std::move(cancelled) : never; }

StepReport Trainer::step() {
  const Stopwatch watch;
  StepReport report;
  report.step = step_ + 1;
  report.loss = accumulate_gradients();
  if (!std::isfinite(report.loss)) throw_diverged(report.step, "the loss", report.loss);
  report.bits_per_byte = bits_per_byte(report.loss);
  report.grad_norm = gradient_norm();
  if (!std::isfinite(report.grad_norm)) throw_diverged(report.step, "the norm of the gradient", report.grad_norm);
  const bool clipped = settings_.clip > 0.0 && report.grad_norm > settings_.clip;
  report.lr = learning_rate(settings_.schedule, report.step);
  update(report.lr, clipped ? settings_.clip / report.grad_norm : 1.0, report.step);
  step_ = report.step;
  report.tokens = step_ * settings_.tokens_per_step();
  report.spike = spikes_.add(report.loss);
  report.seconds = watch.seconds();
  return report;
}

Evaluation Trainer::evaluate() {
  require(evaluator_.has_value(), "eval_tokens is 0: nothing to evaluate on");
  return evaluator_->evaluate(parameters_.data());
}

double Trainer::flops_per_step() const {
  return static_cast<double>(settings_.accumulate) *
         models::training_flops(config(), trained_, settings_.batch, settings_.seq_len);
}

TrainerState Trainer::state() const {
  TrainerState state;
  state.settings = settings_;
  state.step = step_;
  state.data_fingerprint = source_.fingerprint();
  state.spikes = spikes_.count();
  state.inside_spike = spikes_.inside();
  state.recent_losses = spikes_.window();
  return state;
}

void Trainer::require_finite() const {
  for (const std::vector<float>* buffer : {&parameters_, &first_moment_, &second_moment_}) {
    if (!std::isfinite(squared_norm(buffer->data(), std::ssize(*buffer)))) {
      throw Diverged(fmt::format("step {}: the update left parameters or moments that are not finite", step_));
    }
  }
}

void Trainer::save(const std::string& directory) const {
  require_finite();
  const auto bos = source_.tokens_are_bytes() ? std::optional(bos_of(settings_)) : std::nullopt;
  save_checkpoint(directory,
                  {config(), decoder_->table(), parameters_.data(), first_moment_.data(), second_moment_.data(),
                   write_state(state()), source_.model_files(), settings_.trained, bos});
}

}  // namespace headgate::train
