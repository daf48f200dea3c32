// SPDX-License-Identifier: Apache-2.0
#include "models/train/evaluation_choices.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <numeric>
#include <system_error>
#include <utility>

#include "library/core/check.hpp"
#include "library/core/rows.hpp"
#include "models/data/corpus.hpp"
#include "models/data/text.hpp"
#include "models/data/token_source.hpp"
#include "models/evaluate/layer_heads.hpp"
#include "models/families/model_file.hpp"
#include "models/io/given_path.hpp"
#include "models/io/staged_directory.hpp"
#include "models/layers/activation_rounding.hpp"
#include "models/tokenize/byte_model.hpp"
#include "models/tokenize/open.hpp"
#include "models/train/run_directory.hpp"

namespace headgate::train {
namespace {

Task trained_on(const LoadedModel& model) { return model.trained ? model.trained->task : Task::text; }

/// Returns the task that --task names. Without --task, returns the task on which all models were trained. Throws Error
/// if the models were trained on different tasks.
Task task_of(const EvaluationChoices& choices, const std::vector<LoadedModel>& models) {
  if (!choices.task.empty()) return parse_word<Task>("task", choices.task);
  const Task task = trained_on(models.front());
  for (const LoadedModel& model : models) {
    require(trained_on(model) == task, "{} was trained on {} and {} on {}: --task chooses one for both",
            models.front().name, word_of(task), model.name, word_of(trained_on(model)));
  }
  return task;
}

/// Returns the sequence length in tokens. It is at most the number of positions of every model. Without --seq-len, the
/// sequences of a held-out tail are at most as long as those of the training runs, because the tail of longer sequences
/// may begin earlier.
std::int64_t sequence_length(const EvaluationChoices& choices, const std::vector<LoadedModel>& models) {
  std::int64_t most = models.front().config.seq_len;
  bool all_read_bytes = true;
  for (const LoadedModel& model : models) {
    most = std::min(most, model.config.seq_len);
    if (choices.held_out && !choices.seq_len && model.trained) most = std::min(most, model.trained->seq_len);
    all_read_bytes = all_read_bytes && model.reads_bytes;
  }
  if (!choices.seq_len && !all_read_bytes) most = std::min(most, choices.longest_of_others);
  const std::int64_t tokens = choices.tokens.value_or(kDefaultTokens);
  if (!choices.seq_len) return std::min(most, tokens);
  const std::int64_t seq_len = *choices.seq_len;
  require(seq_len <= most, "--seq-len {} is more than the model's {}, the most it has positions for", seq_len, most);
  require(!choices.tokens || tokens >= seq_len, "--tokens {} is less than a sequence of --seq-len {}", tokens, seq_len);
  return seq_len;
}

/// Throws Error if a metric needs the first token, but a model's window hides this token from some queries. Called only
/// for metrics that the user named. If the user named none, such metrics are null in the report.
void require_seen_first_tokens(const metrics::MetricList& metrics, std::int64_t seq_len,
                               const std::vector<LoadedModel>& models) {
  for (const LoadedModel& model : models) {
    if (!metrics::hides_first_token(model.config, seq_len)) continue;
    for (const metrics::Metric* metric : metrics) {
      require(metric->layers != metrics::MetricLayers::first_token,
              "--seq-len {} is more than the window of {}, {}: queries beyond it do not see the first token, which "
              "--metrics {} is about",
              seq_len, model.name, model.config.window, metric->name);
    }
  }
}

using Source = std::shared_ptr<const SequenceSource>;

DataOptions data_options(const EvaluationChoices& choices, const std::vector<LoadedModel>& models, Task task,
                         std::int64_t seq_len, Bos bos = Bos::off) {
  DataOptions data;
  data.paths = choices.data;
  data.files.include = choices.include;
  data.task = task;
  data.seq_len = seq_len;
  data.bos = bos;
  data.seed = choices.seed.value_or(models.front().trained ? models.front().trained->seed : data.seed);
  data.split = choices.held_out ? Split::training_and_tail : Split::all_held_out;
  return data;
}

/// Tokenizes the bytes [begin, end) of the text with the model's own tokenizer.
TokenText text_of(const LoadedModel& model, const Corpus& corpus, std::int64_t begin, std::int64_t end) {
  std::unique_ptr<tokenize::Tokenizer> tokenizer;
  try {
    tokenizer = tokenize::open_tokenizer(model.tokenizer);
  } catch (const io::FileError& error) {
    throw io::FileError(fmt::format("{}; --token-ids takes a text's ids from a .npy file", error.what()));
  }
  require(tokenizer->vocab() <= model.config.vocab, "{}: its tokenizer has {} tokens but the model {}", model.name,
          tokenizer->vocab(), model.config.vocab);
  TokenText out = token_text(corpus, begin, end, *tokenizer);
  require(!out.ids.empty(), "{}: its tokenizer has no token for the {} bytes of the text that are read", model.name,
          std::min(end, corpus.size()) - begin);
  return out;
}

/// Returns the element of `sources` with the same sequences as `source`, or `source` if there is none.
Source shared(const std::vector<Source>& sources, Source source) {
  const auto same = std::find_if(sources.begin(), sources.end(), [&](const Source& other) {
    return !other->tokens_are_bytes() && other->fingerprint() == source->fingerprint();
  });
  return same == sources.end() ? source : *same;
}

/// A text as a model reads it: as tokens or as bytes.
struct ReadText {
  std::optional<TokenText> tokens;  ///< tokens of the text; empty: the model reads bytes
  Bos bos = Bos::off;               ///< whether a sequence of bytes begins with BOS

  /// Returns how many token ids of the text a sequence of `seq_len` tokens uses. Counts the target of the last token,
  /// but not tokens in front of the text, such as BOS.
  std::int64_t ids(std::int64_t seq_len) const { return seq_len + 1 - front(); }
  std::int64_t front() const {
    return tokens ? static_cast<std::int64_t>(tokens->front.size()) : static_cast<std::int64_t>(bos == Bos::on);
  }
};

/// Returns how many bytes of the text a sequence of `seq_len` tokens covers, including the last target.
std::int64_t bytes_of(const ReadText& text, std::int64_t seq_len) {
  if (!text.tokens) return text.ids(seq_len);
  const std::vector<std::int32_t>& bytes = text.tokens->bytes;
  const auto ids = std::min(text.ids(seq_len), static_cast<std::int64_t>(bytes.size()));
  return std::accumulate(bytes.begin(), bytes.begin() + ids, std::int64_t{0});
}

/// Returns the largest sequence length from 1 to `seq_len` that covers at most `bytes` bytes of the text. The bytes of
/// the last target count too. Returns 1 if even one token covers more.
std::int64_t sequence_within(const ReadText& text, std::int64_t seq_len, std::int64_t bytes) {
  std::int64_t excess = bytes_of(text, seq_len) - bytes;
  for (; seq_len > 1 && excess > 0; --seq_len) {
    const auto last = static_cast<std::size_t>(text.ids(seq_len) - 1);
    if (!text.tokens) {
      --excess;
    } else if (last < text.tokens->bytes.size()) {  // false if the text ends before
      excess -= text.tokens->bytes[last];
    }
  }
  return seq_len;
}

/// Returns the sequence length of each model, in tokens.
std::vector<std::int64_t> sequence_lengths(const EvaluationChoices& choices, const std::vector<ReadText>& texts,
                                           std::int64_t seq_len) {
  std::vector<std::int64_t> out(texts.size(), seq_len);
  if (!choices.same_text) return out;
  std::int64_t bytes = std::numeric_limits<std::int64_t>::max();
  for (const ReadText& text : texts) bytes = std::min(bytes, bytes_of(text, seq_len));
  std::transform(texts.begin(), texts.end(), out.begin(),
                 [&](const ReadText& text) { return sequence_within(text, seq_len, bytes); });
  return out;
}

/// Returns whether all models read the same tokens: all read bytes, with or without BOS, or all have the same
/// tokenizer.
bool same_tokens(const std::vector<Source>& sources) {
  return std::all_of(sources.begin(), sources.end(), [&](const Source& source) {
    return source == sources[0] || (source->tokens_are_bytes() && sources[0]->tokens_are_bytes());
  });
}

/// Returns the source of sequences for each model. If the text is shorter than one sequence, shortens the sequence.
std::vector<Source> sources_of_text(const Corpus& corpus, const EvaluationChoices& choices,
                                    const std::vector<LoadedModel>& models, std::int64_t seq_len) {
  const std::int64_t begin = choices.held_out ? held_out_begin(corpus.name(), corpus.size(), seq_len) : 0;
  const std::int64_t end = choices.text_bytes ? begin + *choices.text_bytes : corpus.size();
  const bool may_shorten = !choices.seq_len && !choices.held_out;
  std::vector<ReadText> texts;
  for (const LoadedModel& model : models) {
    ReadText text{{}, model.bos};
    const bool is_part = choices.text_bytes && !choices.same_text;
    if (!model.reads_bytes || is_part) text.tokens = text_of(model, corpus, begin, end);
    const std::int64_t longest = text.tokens ? text.tokens->longest() : corpus.size() - 1;
    require(longest > 0, "{}: the text is one token: there is nothing to predict after it", corpus.name());
    if (may_shorten) seq_len = std::min(longest, seq_len);
    texts.push_back(std::move(text));
  }
  const std::vector<std::int64_t> lengths = sequence_lengths(choices, texts, seq_len);
  std::vector<Source> out;
  Source bytes, bytes_after_bos;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].tokens) {
      out.push_back(shared(out, std::make_shared<TokenSource>(std::move(*texts[i].tokens), lengths[i])));
      continue;
    }
    Source& source = texts[i].bos == Bos::on ? bytes_after_bos : bytes;
    if (!source) source = open_data(data_options(choices, models, Task::text, lengths[i], texts[i].bos));
    out.push_back(source);
  }
  return out;
}

/// Holds the source of sequences for each model. `limit` describes the part of the text that the models read by
/// default, for messages. It is empty if no default limits the text.
struct Sources {
  std::vector<Source> list;
  std::string limit{};
};

/// Throws Error if the tail for sequences of `seq_len` tokens contains text that a model was trained on.
void require_unseen_tail(const Corpus& corpus, const std::vector<LoadedModel>& models, std::int64_t seq_len) {
  const std::int64_t begin = held_out_begin(corpus.name(), corpus.size(), seq_len);
  for (const LoadedModel& model : models) {
    if (!model.trained || corpus.size() < 2 * (model.trained->seq_len + 1)) continue;  // trained on other text
    const std::int64_t unseen = held_out_begin(corpus.name(), corpus.size(), model.trained->seq_len);
    require(
        begin >= unseen,
        "--seq-len {}: a sequence is longer than the {} bytes that the training of {} held out, with sequences of {}",
        seq_len, corpus.size() - unseen, model.name, model.trained->seq_len);
  }
}

/// Opens the text for each model. Opens only the first kDefaultBytes bytes if the models split the text into different
/// tokens and neither --tokens nor `same_text` is given.
Sources limited_sources_of_text(const EvaluationChoices& choices, const std::vector<LoadedModel>& models,
                                std::int64_t seq_len) {
  const Corpus corpus(choices.data, {.include = choices.include, .run = {}});
  require(corpus.size() > 0, "{}: the text is empty", corpus.name());
  if (choices.held_out) require_unseen_tail(corpus, models, seq_len);
  Sources out{sources_of_text(corpus, choices, models, seq_len)};
  const std::int64_t begin = choices.held_out ? held_out_begin(corpus.name(), corpus.size(), seq_len) : 0;
  if (choices.tokens || choices.same_text || same_tokens(out.list) || corpus.size() - begin <= kDefaultBytes)
    return out;
  EvaluationChoices beginning = choices;
  beginning.text_bytes = kDefaultBytes;
  beginning.tokens = kAllTokens;
  out.list = sources_of_text(corpus, beginning, models, seq_len);
  out.limit = fmt::format("the first {} of the text's {} bytes, as the models' tokens differ", kDefaultBytes,
                          corpus.size() - begin);
  return out;
}

Sources sources_of(const EvaluationChoices& choices, const std::vector<LoadedModel>& models) {
  std::int64_t seq_len = sequence_length(choices, models);
  if (!choices.token_ids.empty()) {
    TokenText text{choices.token_ids, read_token_ids(choices.token_ids), {}, {}, {}};
    if (!choices.seq_len) seq_len = std::clamp<std::int64_t>(text.longest(), 1, seq_len);
    return {std::vector<Source>(models.size(), std::make_shared<TokenSource>(std::move(text), seq_len))};
  }
  const Task task = task_of(choices, models);
  require(!choices.seed || task != Task::text, "--seed {}: sequences of --task {} are not drawn at random; omit it",
          choices.seed.value_or(0), word_of(task));
  if (task == Task::text) return limited_sources_of_text(choices, models, seq_len);
  for (const LoadedModel& model : models) {
    require(model.reads_bytes, "--task {}: its sequences are drawn from bytes, and {} reads other tokens",
            word_of(task), model.name);
  }
  return {std::vector<Source>(models.size(), open_data(data_options(choices, models, task, seq_len)))};
}

metrics::MetricList metrics_of(const EvaluationChoices& choices, const SequenceSource& source,
                               const std::vector<LoadedModel>& models) {
  metrics::MetricList out = metrics::that_apply(metrics::parse_metrics(choices.metrics), source.has_triggers());
  require(!out.empty(), "--metrics {}: only tasks with triggers have it, such as bigram-backcopy",
          fmt::join(choices.metrics, ","));
  const bool has_linear = std::any_of(models.begin(), models.end(), [](const LoadedModel& model) {
    return models::has_layer(model.config, models::LayerType::linear_attention);
  });
  const bool needs_linear = std::all_of(out.begin(), out.end(), [](const metrics::Metric* metric) {
    return metric->layers == metrics::MetricLayers::linear_attention;
  });
  require(has_linear || !needs_linear, "--metrics {}: only models with layers of linear attention have it",
          fmt::join(choices.metrics, ","));
  return out;
}

/// Returns the roundings of activations that --activations names, without duplicates. Throws Error for other names.
std::vector<layers::ActivationRounding> roundings_of(const EvaluationChoices& choices) {
  std::vector<layers::ActivationRounding> out;
  for (const std::string& words : choices.activations) {
    for (const std::string_view word : metrics::split_at_commas(words)) {
      const auto rounding = parse_option_word<layers::ActivationRounding>("--activations", word);
      if (std::find(out.begin(), out.end(), rounding) == out.end()) out.push_back(rounding);
    }
  }
  require(out.empty() || choices.precision == models::ModelPrecision::f32,
          "--activations {}: rounds activations in f32, not in --precision {}", fmt::join(choices.activations, ","),
          option_word_of(choices.precision));
  return out;
}

/// Throws Error if --part splits sequences and --activations names a rounding that uses one scale per whole sequence.
/// Such a scale needs all tokens of the sequence at once.
void require_uncut_sequences(const EvaluationPlan& plan, std::int64_t seq_len) {
  for (const layers::ActivationRounding rounding : plan.activations) {
    require(!spans_tokens(rounding) || plan.part == 0 || seq_len <= plan.part,
            "--activations {}: one scale for a sequence of {} tokens needs --part {}", word_of(rounding), seq_len,
            seq_len);
  }
}

/// Returns an evaluation input with this source of sequences, the metrics and the evaluation plan. `limit` has the
/// meaning of Sources::limit.
EvaluationInput with_plan(Source source, const EvaluationChoices& choices, const std::vector<LoadedModel>& models,
                          const std::string& limit) {
  EvaluationInput input{std::move(source), {}, {}, limit};
  input.metrics = metrics_of(choices, *input.source, models);
  const std::int64_t seq_len = input.source->seq_len(), sequences = input.source->held_out_count();
  if (metrics::names_each_metric(choices.metrics)) require_seen_first_tokens(input.metrics, seq_len, models);
  const bool ends = !input.source->has_triggers();  // tasks with trigger tokens generate endless random sequences
  require(ends || choices.tokens != kAllTokens, "--tokens all: the sequences of this task have no end; give a number");
  const std::int64_t most = choices.tokens.value_or(limit.empty() ? kDefaultTokens : kAllTokens);
  input.plan = plan_evaluation(sequences, most / seq_len, seq_len > choices.part ? 1 : choices.batch);
  input.plan.part = choices.part;
  input.plan.precision = choices.precision;
  input.plan.cache = choices.cache;
  input.plan.cache_first = choices.cache_first;
  input.plan.activations = roundings_of(choices);
  require_uncut_sequences(input.plan, seq_len);
  if (ends && !choices.tokens && limit.empty() && sequences > std::max<std::int64_t>(1, most / seq_len)) {
    input.limit = fmt::format("{} of the text's {} tokens, in sequences spread evenly over it",
                              input.plan.batch * input.plan.batches * seq_len, sequences * seq_len);
  }
  return input;
}

bool has_attention(const LoadedModel& model) {
  return models::has_layer(model.config, models::LayerType::full_attention) ||
         models::has_layer(model.config, models::LayerType::sliding_attention);
}

/// Throws Error if --cache-dtype is given, but no model has layers of attention, which have keys and values to cache.
void require_attention(const EvaluationChoices& choices, const std::vector<LoadedModel>& models) {
  if (choices.cache == DType::none) return;
  const bool any = std::any_of(models.begin(), models.end(), has_attention);
  require(any, "--cache-dtype {}: {} has no layers of attention, so no keys and values", dtype_name(choices.cache),
          models.front().name);
}

/// Throws Error if a model's vocabulary differs in size from that of the reference, which is the last model.
void require_vocabulary_of_reference(const std::vector<LoadedModel>& models) {
  const LoadedModel& reference = models.back();
  for (const LoadedModel& model : models) {
    require(model.config.vocab == reference.config.vocab, "--against {}: it has {} tokens in its vocabulary, but {} {}",
            reference.name, reference.config.vocab, model.name, model.config.vocab);
  }
}

/// Throws Error if a model and the reference, which is the last model, split the text into different tokens.
void require_tokens_of_reference(const std::vector<LoadedModel>& models, const std::vector<Source>& sources) {
  for (std::size_t i = 0; i < models.size(); ++i) {
    require(sources[i] == sources.back(), "--against {}: {} reads the text as other tokens", models.back().name,
            models[i].name);
  }
}

/// Throws Error if --tokens is given and the models have different tokenizers. The same number of tokens would then
/// cover different parts of the text.
void require_whole_text(const EvaluationChoices& choices, const std::vector<LoadedModel>& models,
                        const std::vector<Source>& sources) {
  if (!choices.tokens || *choices.tokens == kAllTokens || choices.same_text) return;
  for (std::size_t i = 1; i < sources.size(); ++i) {
    require(same_tokens({sources[0], sources[i]}),
            "--tokens {}: {} and {} read the text as different tokens and would be evaluated on different parts of it",
            *choices.tokens, models[0].name, models[i].name);
  }
}

}  // namespace

std::string model_path(const std::string& path) {
  std::string there = io::given_path(path);
  if (models::is_gguf(there)) return there;
  std::error_code error;
  if (!std::filesystem::is_directory(there, error)) {
    io::fail(path, "not a GGUF file; for a model in other files, give the directory that holds its config.json");
  }
  for (const std::string& directory : {there, newest_checkpoint(there)}) {
    if (is_checkpoint(directory)) return io::present_directory(directory);
  }
  io::fail(path, "neither a model (no config.json) nor a run (no checkpoint/config.json)");
}

LoadedModel load_model(const std::string& path) {
  const models::ModelFile file(model_path(path));
  LoadedModel model = describe_model(path, file);
  model.parameters = file.read();
  return model;
}

LoadedModel describe_model(const std::string& path, const models::ModelFile& file) {
  const std::string directory = model_path(path);
  LoadedModel model{path, file.config(), {}, std::nullopt};
  const bool gguf = file.gguf() != nullptr;
  const std::string state = gguf ? "" : read_trainer_state(directory);
  const tokenize::ByteText text = gguf ? tokenize::ByteText::none : tokenize::byte_text_of(directory);
  model.reads_bytes = text != tokenize::ByteText::none;
  model.bos = text == tokenize::ByteText::after_bos ? Bos::on : Bos::off;
  model.tokenizer = directory;
  if (state.empty()) return model;
  try {
    model.trained = read_state(state).settings;
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", directory, error.what()));
  }
  return model;
}

std::vector<EvaluationInput> evaluation_inputs(const EvaluationChoices& choices,
                                               const std::vector<LoadedModel>& models) {
  require_attention(choices, models);
  if (choices.against) require_vocabulary_of_reference(models);
  const Sources sources = sources_of(choices, models);
  if (choices.against) require_tokens_of_reference(models, sources.list);
  require_whole_text(choices, models, sources.list);
  std::vector<EvaluationInput> out;
  out.reserve(sources.list.size());
  for (std::size_t i = 0; i < models.size(); ++i) {
    out.push_back(with_plan(sources.list[i], choices, models, sources.limit));
    if (!has_attention(models[i])) out.back().plan.cache = DType::none;
  }
  return out;
}

std::vector<Comparison> comparisons_of(HeldOutEvaluator& evaluator, const LoadedModel& model,
                                       const LoadedModel* reference) {
  std::vector<Comparison> out = evaluator.compare_rounded(model.parameters.data());
  if (reference != nullptr) {
    out.push_back({Compared::reference, reference->name,
                   evaluator.compare_with(reference->config, reference->parameters.data(), model.parameters.data())});
  }
  return out;
}

}  // namespace headgate::train
