// SPDX-License-Identifier: Apache-2.0
#include "models/generate/cached_decoder.hpp"

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "library/core/arena.hpp"
#include "library/core/check.hpp"
#include "library/core/convert.hpp"
#include "library/core/workspace.hpp"
#include "models/decoder/decoder_blocks.hpp"
#include "models/decoder/decoder_buffers.hpp"
#include "models/decoder/weights.hpp"
#include "models/families/model_file.hpp"
#include "models/layers/attention_cache.hpp"
#include "models/layers/embedding.hpp"
#include "models/layers/linear.hpp"
#include "models/layers/skinny_gemm.hpp"
#include "models/layers/stored_matrix.hpp"

namespace headgate::models {

namespace {

/// Maximum number of rows that pass through the layers together. A row is a new token of one sequence. Larger numbers
/// would need more memory and save little: at 512 rows, packing and widening the weights already takes little time
/// compared to the matrix products.
constexpr std::int64_t kMostRows = 512;
/// Minimum number of rows for which ModelPrecision::bf16 computes in bf16. Fewer rows compute in f32, because their
/// products read the matrices in place.
constexpr std::int64_t kLeastRoundedRows = layers::kSkinnyRows + 1;

/// Owns a model's weights: vectors in f32 and matrices of type M. If M is f32, vectors and matrices share one buffer.
template <typename M>
class StoredWeights {
 public:
  explicit StoredWeights(const DecoderConfig& config) {
    std::size_t vectors = 0, matrices = 0;
    const ParameterTable table(config);
    for (const Parameter& p : table.entries()) {
      std::size_t& sum = is_apart(p) ? matrices : vectors;
      sum += static_cast<std::size_t>(p.count);
    }
    vectors_ = Block{vectors * sizeof(float)};
    matrices_ = Block{matrices * sizeof(M)};
    next_ = reinterpret_cast<float*>(vectors_.data());
    next_matrix_ = reinterpret_cast<M*>(matrices_.data());
    const float* at = next_;
    if constexpr (kOneBuffer) {
      assign_views(config, AssignViews<const float>(at));
    } else {
      const M* at_matrix = next_matrix_;
      assign_views(config, AssignViewsByType<const float, const M>(at, at_matrix));
    }
  }

  /// Stores the next parameter. The calls must follow the order of the parameter table.
  void add(const Parameter& parameter, const float* values) {
    if constexpr (!kOneBuffer) {
      if (is_apart(parameter)) {
        next_matrix_ = std::transform(values, values + parameter.count, next_matrix_, to_bf16);
        return;
      }
    }
    next_ = std::copy_n(values, parameter.count, next_);
  }

  const LayerWeights<const float, const M>& layer(std::int64_t index) const {
    return layers_[static_cast<std::size_t>(index)];
  }
  const OuterWeights<const float, const M>& outer() const { return outer_; }
  std::size_t bytes() const { return vectors_.bytes() + matrices_.bytes(); }
  std::size_t embedding_row_bytes() const { return static_cast<std::size_t>(outer_.embedding.shape[1]) * sizeof(M); }
  void check() const {}

 private:
  static constexpr bool kOneBuffer = std::is_same_v<M, float>;

  static bool is_apart(const Parameter& parameter) { return !kOneBuffer && is_matrix(parameter.kind); }

  template <class Assign>
  void assign_views(const DecoderConfig& config, const Assign& at) {
    const auto at_layers = [&] {
      for (std::int64_t layer = 0; layer < config.layers; ++layer) {
        visit_layer_tensors(at, config, layer_config(config, layer), layers_.emplace_back());
      }
    };
    visit_outer_tensors(at, at_layers, config, outer_);
    if (config.embeddings == Embeddings::tied) outer_.head = outer_.embedding;
  }

  Block vectors_, matrices_;
  float* next_ = nullptr;
  M* next_matrix_ = nullptr;
  std::vector<LayerWeights<const float, const M>> layers_;
  OuterWeights<const float, const M> outer_;
};

/// Views a model's matrices in mapped files. Owns its vectors, converted to f32.
class MappedWeights {
 public:
  explicit MappedWeights(const ModelFile& file) : files_(file.weights()) {
    const DecoderConfig& config = file.config();
    const ParameterTable table(config);
    std::size_t vectors = 0;
    for (const Parameter& p : table.entries()) vectors += is_matrix(p.kind) ? 0 : static_cast<std::size_t>(p.count);
    vectors_ = Block{vectors * sizeof(float)};
    bytes_ = vectors_.bytes();
    auto* next = reinterpret_cast<float*>(vectors_.data());
    file.read_in_place(
        [&](const Parameter& p, TensorLocation at) {
          matrices_.push_back(stored_matrix(std::move(at), p.shape[1]));
          bytes_ += matrices_.back().bytes();
        },
        [&](const Parameter& p, const float* values) { next = std::copy_n(values, p.count, next); });
    assign_views(config);
  }

  const LayerWeights<const float, const layers::StoredBlocks>& layer(std::int64_t index) const {
    return layers_[static_cast<std::size_t>(index)];
  }
  const OuterWeights<const float, const layers::StoredBlocks>& outer() const { return outer_; }
  std::size_t bytes() const { return bytes_; }
  std::size_t embedding_row_bytes() const { return outer_.embedding.parts.front().row_bytes(); }
  /// Throws io::FileError if a file has become shorter.
  void check() const { files_->check_whole(); }

 private:
  /// Stores a permutation of rows or columns and returns its address. Returns null for an empty permutation, which
  /// keeps the order of the file.
  const std::int64_t* store_order(std::vector<std::int64_t> order) {
    return order.empty() ? nullptr : orders_.emplace_back(std::move(order)).data();
  }

  layers::StoredMatrix stored_matrix(TensorLocation at, std::int64_t columns) {
    layers::StoredMatrix matrix;
    for (TensorPiece& piece : at.pieces) {
      const StoredTensor tensor = files_->stored(piece.tensor);
      layers::StoredRows rows{tensor.format, tensor.data, tensor.numel / columns, columns, nullptr};
      rows.scales = tensor.scales;
      if (!piece.rows.empty()) {
        rows.rows = std::ssize(piece.rows);
        rows.order = store_order(std::move(piece.rows));
      } else if (piece.count > 0) {
        rows = rows.range(piece.begin, piece.count);
        rows.step = piece.step;
      }
      matrix.parts.push_back(rows);
    }
    matrix.column_order = store_order(std::move(at.columns));
    return matrix;
  }

  void assign_views(const DecoderConfig& config) {
    const auto* next = reinterpret_cast<const float*>(vectors_.data());
    const layers::StoredMatrix* next_matrix = matrices_.data();
    const AssignStoredMatrices at(next, next_matrix);
    const auto at_layers = [&] {
      for (std::int64_t layer = 0; layer < config.layers; ++layer) {
        visit_layer_tensors(at, config, layer_config(config, layer), layers_.emplace_back());
      }
    };
    visit_outer_tensors(at, at_layers, config, outer_);
    if (config.embeddings == Embeddings::tied) outer_.head = outer_.embedding;
  }

  std::shared_ptr<const WeightFiles> files_;
  Block vectors_;
  std::size_t bytes_ = 0;
  std::deque<std::vector<std::int64_t>> orders_;  // permutations of rows and columns, to which matrices_ points
  std::vector<layers::StoredMatrix> matrices_;    // all matrices of the model, in the order of the parameter table
  std::vector<LayerWeights<const float, const layers::StoredBlocks>> layers_;
  OuterWeights<const float, const layers::StoredBlocks> outer_;
};

std::size_t bytes_of(const layers::StoredMatrix& matrix) { return matrix.bytes(); }

template <typename M>
std::size_t bytes_of(View<M, 2> matrix) {
  return matrix.present() ? static_cast<std::size_t>(matrix.shape[0] * matrix.shape[1]) * sizeof(M) : 0;
}

template <typename M>
using WeightsOf = std::conditional_t<std::is_same_v<M, layers::StoredBlocks>, MappedWeights, StoredWeights<M>>;

/// Holds the buffers for passing T new tokens per sequence through the layers. A is the type of activations.
template <typename A>
struct PassBuffers {
  PassBuffers(const DecoderConfig& config, BatchShape shape, const ExecutionContext& context)
      : sizes(without_logits(config, shape)), memory(sizes), blocks(sizes, *memory, context) {}

  static DecoderSizes without_logits(const DecoderConfig& config, BatchShape shape) {
    DecoderSizes sizes(config, shape, Purpose::evaluate);
    sizes.logit_rows = 0;
    return sizes;
  }

  DecoderSizes sizes;
  Placed<DecoderBuffers<A>, Block> memory;
  DecoderBlocks<A> blocks;
};

CachedDecoderOptions checked(const DecoderConfig& config, CachedDecoderOptions options) {
  require_valid(config, {options.batch, 1});
  require(!options.weights || options.weights == DType::f32 || options.weights == DType::bf16,
          "decoder: weights are {} but must be f32 or bf16", dtype_name(options.weights.value_or(DType::f32)));
  require(options.cache == DType::f32 || options.cache == DType::i8,
          "decoder: the cache is {} but must be f32, as queries are, or i8", dtype_name(options.cache));
  require(options.cache_first == 0 || (options.cache_first > 0 && options.cache == DType::i8),
          "decoder: {} first tokens that stay unrounded, in a cache of {}: must be at least 0, and the cache i8",
          options.cache_first, dtype_name(options.cache));
  if (options.capacity == 0) options.capacity = config.seq_len;
  require(options.capacity >= 1 && options.capacity <= config.seq_len,
          "decoder: a capacity of {} tokens, not between 1 and the config's seq_len of {}", options.capacity,
          config.seq_len);
  require(options.keep >= 0 && options.keep <= options.capacity,
          "decoder: keep is {} tokens but must be from 0 to the capacity of {}", options.keep, options.capacity);
  require(options.gate_threshold == 0.0 || layers::can_skip_attention(config.gate),
          "decoder: a gate threshold of {} but gate {} does not multiply the attention output", options.gate_threshold,
          layers::gate_name(config.gate));
  options.context = resolved(options.context);
  return options;
}

}  // namespace

struct CachedDecoder::State {
  State(const DecoderConfig& config_in, const CachedDecoderOptions& options_in)
      : config(config_in), options(checked(config_in, options_in)), one(config, {options.batch, 1}, options.context) {
    skip.threshold = options.gate_threshold;
    caches.resize(static_cast<std::size_t>(config.layers));
    for (std::size_t layer = 0; layer < caches.size(); ++layer) {
      switch (one.sizes.layers[layer].type) {
        case LayerType::full_attention:
          caches[layer].attention.emplace(*one.sizes.full, options.cache, options.capacity, options.cache_first,
                                          options.keep);
          break;
        case LayerType::sliding_attention:
          caches[layer].attention.emplace(*one.sizes.sliding, options.cache, options.capacity, options.cache_first,
                                          options.keep);
          break;
        case LayerType::linear_attention:
          caches[layer].delta.emplace(*one.sizes.linear, DType::f32, options.keep);
          break;
      }
    }
  }
  virtual ~State() = default;

  /// Runs tokens(B,T) through all layers. Computes logits(B,R,V) for the last R tokens of each sequence. `pass` must
  /// have buffers for T tokens.
  virtual void forward(View<float, 3> logits, View<const std::int32_t, 2> tokens, const PassBuffers<float>& pass) = 0;
  virtual void forward(View<float, 3> logits, View<const std::int32_t, 2> tokens,
                       const PassBuffers<BFloat16>& pass) = 0;
  virtual std::size_t weight_bytes() const = 0;
  virtual std::size_t step_weight_bytes() const = 0;

  std::int64_t length() const { return caches.front().length(); }
  std::int64_t reachable(std::int64_t length) const;
  void truncate(std::int64_t length);

  /// Returns buffers for passes of T new tokens per sequence. Reuses the buffers in `last` if they have this size.
  /// Otherwise replaces them by new buffers.
  template <typename A>
  PassBuffers<A>& buffers_for(std::optional<PassBuffers<A>>& last, std::int64_t T) {
    if (!last || last->sizes.N != options.batch * T) {
      last.emplace(config, BatchShape{options.batch, T}, options.context);
    }
    return *last;
  }

  void append(View<float, 3> logits, View<const std::int32_t, 2> tokens);
  void append_part(View<float, 3> logits, View<const std::int32_t, 2> tokens);
  template <typename A>
  void append_through(PassBuffers<A>& pass, View<float, 3> logits, View<const std::int32_t, 2> tokens);

  DecoderConfig config;
  CachedDecoderOptions options;
  layers::AttentionSkip skip;
  std::vector<LayerCache> caches;  // one cache per layer
  PassBuffers<float> one;
  std::optional<PassBuffers<float>> many;
  std::optional<PassBuffers<BFloat16>> many_rounded;
};

void CachedDecoder::State::append(View<float, 3> logits, View<const std::int32_t, 2> tokens) {
  const auto [B, T] = tokens.shape;
  require(B == options.batch && T >= 1, "decoder: tokens of shape ({},{}) for {} sequences", B, T, options.batch);
  const std::int64_t R = logits.shape[1];
  require(logits.shape[0] == B && logits.shape[2] == config.vocab && logits.strides[2] == 1,
          "decoder: logits of shape ({},{},{}) for {} sequences and a vocabulary of {}", logits.shape[0], R,
          logits.shape[2], B, config.vocab);
  require(logits.present() && tokens.present(), "decoder: logits or tokens are null");
  require(T <= options.capacity - length(), "decoder: {} tokens after {} are more than the capacity of {}", T, length(),
          options.capacity);
  for (std::int64_t b = 0; b < B; ++b) {
    for (std::int64_t t = 0; t < T; ++t) {
      require(tokens(b, t) >= 0 && tokens(b, t) < config.vocab,
              "decoder: tokens[{}][{}] is {}, outside a vocabulary of {}", b, t, tokens(b, t), config.vocab);
    }
  }
  const std::int64_t most = std::max<std::int64_t>(1, kMostRows / B);
  for (std::int64_t t = 0; t < T; t += most) {
    const std::int64_t here = std::min(most, T - t);
    // Selects the rows [first, end) of `logits` that belong to tokens of this part. The R rows are those of the last R
    // tokens, so [first, end) is empty if none of these tokens is in the part.
    const std::int64_t first = std::max<std::int64_t>(0, t - (T - R)),
                       end = std::max<std::int64_t>(0, t + here - (T - R));
    append_part(logits.range(1, first, end - first), tokens.range(1, t, here));
  }
}

void CachedDecoder::State::append_part(View<float, 3> logits, View<const std::int32_t, 2> tokens) {
  const std::int64_t T = tokens.shape[1];
  if (options.precision == ModelPrecision::bf16 && options.batch * T >= kLeastRoundedRows) {
    append_through(buffers_for(many_rounded, T), logits, tokens);
  } else {
    append_through(T == 1 ? one : buffers_for(many, T), logits, tokens);
  }
}

template <typename A>
void CachedDecoder::State::append_through(PassBuffers<A>& pass, View<float, 3> logits,
                                          View<const std::int32_t, 2> tokens) {
  const std::int64_t before = length();
  pass.blocks.set_first_position(before);
  try {
    forward(logits, tokens, pass);
  } catch (...) {
    truncate(before);
    throw;
  }
  for (LayerCache& cache : caches) {
    if (cache.attention) cache.attention->slide();
  }
}

std::int64_t CachedDecoder::State::reachable(std::int64_t length) const {
  std::int64_t before = -1;
  while (length != before) {  // repeats until all layers can be truncated to `length`
    before = length;
    for (const LayerCache& cache : caches) length = cache.reachable(length);
  }
  return length;
}

void CachedDecoder::State::truncate(std::int64_t length) {
  for (LayerCache& cache : caches) cache.truncate(length);
}

template <typename M>
struct CachedDecoder::StateOf : State {
  /// Makes the weights from `source`, a DecoderConfig or a ModelFile.
  template <class Source>
  StateOf(const DecoderConfig& config_in, const CachedDecoderOptions& options_in, const Source& source)
      : State(config_in, options_in), weights(source) {}

  void forward(View<float, 3> logits, View<const std::int32_t, 2> tokens, const PassBuffers<float>& pass) override {
    pass_through(logits, tokens, pass);
  }
  void forward(View<float, 3> logits, View<const std::int32_t, 2> tokens, const PassBuffers<BFloat16>& pass) override {
    pass_through(logits, tokens, pass);
  }
  template <typename A>
  void pass_through(View<float, 3> logits, View<const std::int32_t, 2> tokens, const PassBuffers<A>& pass);
  void write_logits(View<float, 3> logits, const View<const float, 3>& h) const;
  std::size_t weight_bytes() const override { return weights.bytes(); }
  std::size_t step_weight_bytes() const override {
    const std::size_t row = weights.embedding_row_bytes();
    const bool tied = config.embeddings == Embeddings::tied;
    return weights.bytes() - (tied ? 0 : static_cast<std::size_t>(config.vocab) * row) +
           static_cast<std::size_t>(options.batch) * row - unread_expert_bytes();
  }
  /// Returns how many bytes of expert weights stay unread when one token per sequence is decoded. The result is a lower
  /// bound, because it assumes that all sequences choose different experts.
  std::size_t unread_expert_bytes() const {
    const Experts& experts = config.experts;
    if (experts.count == 0) return 0;
    std::size_t all = 0;
    for (std::int64_t layer = 0; layer < config.layers; ++layer) {
      const auto& w = weights.layer(layer).experts;
      all += bytes_of(w.gate_up) + bytes_of(w.down);
    }
    const std::int64_t unread = experts.count - std::min(experts.count, options.batch * experts.active);
    return all / static_cast<std::size_t>(experts.count) * static_cast<std::size_t>(unread);
  }

  WeightsOf<M> weights;
};

template <typename M>
template <typename A>
void CachedDecoder::StateOf<M>::pass_through(View<float, 3> logits, View<const std::int32_t, 2> tokens,
                                             const PassBuffers<A>& pass) {
  weights.check();
  const auto [B, T] = tokens.shape;
  const std::int64_t R = logits.shape[1];
  const DecoderBuffers<A>& memory = *pass.memory;
  for (std::int64_t b = 0; b < B; ++b) {
    pass.blocks.embed(memory.layer(0).x.range(0, b * T, T), weights.outer(), tokens[b]);
  }
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const LayerWeights<const float, const M>& w = weights.layer(layer);
    const auto index = static_cast<std::size_t>(layer);
    const LayerConfig& c = pass.sizes.layers[index];
    const SavedLayer<A>& s = memory.layer(layer);
    pass.blocks.mixer_block(c, w, s, {.skip = &skip, .cache = &caches[index], .replaced = nullptr});
    pass.blocks.mlp_block(layer + 1 < config.layers ? memory.layer(layer + 1).x : memory.x_last, c, w, s);
  }
  if (R == 0) return;
  // The normalized rows must be f32, but with bf16 the buffer h_last is bf16. Therefore they overwrite the first
  // layer's input, which is no longer needed.
  View<float, 2> normed = memory.layer(0).x;
  if constexpr (std::is_same_v<A, float>) normed = memory.h_last;
  pass.blocks.template norm<float, float>(normed, memory.rstd_last, memory.x_last, weights.outer().norm);
  write_logits(logits, normed.split(0, B, T).range(1, T - R, R));
}

/// Computes logits(B,R,V) from the rows h(B,R,C), which the last norm has normalized.
template <typename M>
void CachedDecoder::StateOf<M>::write_logits(View<float, 3> logits, const View<const float, 3>& h) const {
  const auto [B, R, C] = h.shape;
  if (R == 1) {  // one matrix product for all sequences
    const View<const float, 2> rows(h.data, {B, C}, {h.strides[0], 1});
    const View<float, 2> out(logits.data, {B, config.vocab}, {logits.strides[0], 1});
    return layers::linear_forward(out, rows, weights.outer().head, layers::Update::overwrite, options.context);
  }
  for (std::int64_t b = 0; b < B; ++b) {
    layers::linear_forward(logits[b], h[b], weights.outer().head, layers::Update::overwrite, options.context);
  }
}

// --- CachedDecoder -----------------------------------------------------------------------------------------------

namespace {

/// Calls make(M{}), where M is the element type of matrices for `dtype`: BFloat16 or float.
template <class Make>
auto with_matrix_type(DType dtype, const Make& make) {
  return dtype == DType::bf16 ? make(BFloat16{}) : make(float{});
}

}  // namespace

std::unique_ptr<CachedDecoder::State> CachedDecoder::open(const ModelFile& file, CachedDecoderOptions options) {
  file.check_tensors();  // throws for bad options before anything is allocated
  if (!options.weights && file.stores_narrow_matrices()) {
    return std::make_unique<StateOf<layers::StoredBlocks>>(file.config(), options, file);
  }
  options.weights = options.weights.value_or(DType::bf16);
  return with_matrix_type(*options.weights, [&](auto element) -> std::unique_ptr<State> {
    auto state = std::make_unique<StateOf<decltype(element)>>(file.config(), options, file.config());
    file.read_each([&](const Parameter& p, const float* values) { state->weights.add(p, values); });
    return state;
  });
}

CachedDecoder::CachedDecoder(const ModelFile& file, const CachedDecoderOptions& options)
    : state_(open(file, options)) {}

CachedDecoder::CachedDecoder(const DecoderConfig& config, const float* parameters, const CachedDecoderOptions& options)
    : state_(with_matrix_type(options.weights.value_or(DType::bf16), [&](auto element) -> std::unique_ptr<State> {
        CachedDecoderOptions with_type = options;
        with_type.weights = options.weights.value_or(DType::bf16);
        auto state = std::make_unique<StateOf<decltype(element)>>(config, with_type, config);
        const ParameterTable table(config);
        for (const Parameter& p : table.entries()) state->weights.add(p, parameters + p.offset);
        return state;
      })) {}

CachedDecoder::~CachedDecoder() = default;

void CachedDecoder::append(View<float, 2> logits, View<const std::int32_t, 2> tokens) {
  state_->append(logits.split(0, logits.shape[0], 1), tokens);
}

void CachedDecoder::append_all(View<float, 3> logits, View<const std::int32_t, 2> tokens) {
  require(logits.shape[1] == tokens.shape[1], "decoder: logits of {} tokens for {}", logits.shape[1], tokens.shape[1]);
  state_->append(logits, tokens);
}

std::int64_t CachedDecoder::length() const { return state_->length(); }

void CachedDecoder::truncate(std::int64_t length) {
  require(length >= 0 && length <= this->length(), "decoder: cannot be cut to {} tokens of {}", length, this->length());
  require(reachable(length) == length,
          "decoder: cannot be cut to {} tokens of {}: a window has dropped tokens, or a recurrent state cannot forget "
          "them; it can be cut to {}",
          length, this->length(), reachable(length));
  state_->truncate(length);
}

std::int64_t CachedDecoder::reachable(std::int64_t length) const {
  return state_->reachable(std::clamp<std::int64_t>(length, 0, this->length()));
}

void CachedDecoder::mark(std::int64_t most) {
  require(most >= 1, "decoder: {} marks, but there must be at least 1", most);
  for (LayerCache& cache : state_->caches) cache.mark(most);
}

const DecoderConfig& CachedDecoder::config() const { return state_->config; }
const CachedDecoderOptions& CachedDecoder::options() const { return state_->options; }
std::int64_t CachedDecoder::capacity() const { return state_->options.capacity; }
std::int64_t CachedDecoder::most_unrounded() const {
  const CachedDecoderOptions& options = state_->options;
  return options.precision == ModelPrecision::f32 ? options.capacity : (kLeastRoundedRows - 1) / options.batch;
}
bool CachedDecoder::reads_in_place() const { return !state_->options.weights; }
std::size_t CachedDecoder::weight_bytes() const { return state_->weight_bytes(); }

std::size_t CachedDecoder::cache_bytes() const {
  std::size_t bytes = 0;
  for (const LayerCache& cache : state_->caches) bytes += cache.bytes();
  return bytes;
}

std::size_t CachedDecoder::step_bytes() const {
  std::size_t bytes = state_->step_weight_bytes();
  for (const LayerCache& cache : state_->caches) bytes += cache.step_bytes();
  return bytes;
}

const layers::AttentionSkip& CachedDecoder::skipped() const { return state_->skip; }

}  // namespace headgate::models
