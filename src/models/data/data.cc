// SPDX-License-Identifier: Apache-2.0
#include "models/data/data.hpp"

#include <utility>

#include "library/core/check.hpp"
#include "models/data/backcopy.hpp"
#include "models/data/corpus.hpp"
#include "models/data/encoded_text.hpp"
#include "models/data/text.hpp"

namespace headgate::train {

std::unique_ptr<SequenceSource> open_data(const DataOptions& options) {
  require(!options.paths.empty(), "no data");
  require(options.seq_len >= 1, "seq_len is {} but must be at least 1", options.seq_len);
  if (options.tokenizer) {
    require(options.task == Task::text, "task {}: its sequences are drawn from bytes, not from a tokenizer's ids",
            word_of(options.task));
    return std::make_unique<EncodedTextSource>(options);
  }
  Corpus corpus(options.paths, options.files);
  require(corpus.size() > 0, "{}: no text, only empty files", options.paths.front());
  if (options.task == Task::bigram_backcopy) return std::make_unique<BackcopySource>(corpus, options);
  return std::make_unique<TextSource>(std::move(corpus), options);
}

}  // namespace headgate::train
