// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "models/tokenize/bpe.hpp"
#include "models/tokenize/vocabulary.hpp"

namespace headgate::tokenize {

/// Derives the merges of SentencePiece's BPE from the scores of tokens, since its vocabularies have no list of merges.
/// Two neighbours may become any token that they spell together; merges into tokens of higher score come first. All
/// merges into one token have the same rank. `scores` has one score per id, NaN for tokens that take no part in merges.
///
///
/// The result is sorted by rank. Merges into the same token are sorted by the length of the left side, longest first.
/// Throws TokenizerError for tokens that are too long.
std::vector<RankedMerge> merges_by_score(const Vocabulary& vocabulary, const std::vector<double>& scores);

}  // namespace headgate::tokenize
