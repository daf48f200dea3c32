// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "models/tokenize/bpe.hpp"
#include "models/tokenize/vocabulary.hpp"

namespace headgate::tokenize {

/// Derives the merges of SentencePiece's BPE from the scores of tokens, since its vocabularies have no list of merges.
/// Two neighbouring tokens may merge if their joined spelling is a token. Merges that make tokens of higher score come
/// first; all merges that make one token have the same rank. `scores` has one score per id, NaN for tokens that take no
/// part in merges.
///
/// The result is sorted by rank. Merges that make the same token are sorted by the length of the left token, longest
/// first. Throws TokenizerError for tokens that are too long.
std::vector<RankedMerge> merges_by_score(const Vocabulary& vocabulary, const std::vector<double>& scores);

}  // namespace headgate::tokenize
