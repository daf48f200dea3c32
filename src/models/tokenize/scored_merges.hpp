// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "models/tokenize/bpe.hpp"
#include "models/tokenize/vocabulary.hpp"

namespace headgate::tokenize {

/// Derives the merges of SentencePiece's BPE from the scores of tokens. Its vocabularies have scores, but no list of
/// merges. Two neighbouring tokens may merge if their joined spelling is a token. The score of the joined token gives
/// the rank of the merge. A higher score means a lower rank, and equal scores mean equal ranks. `scores` has one score
/// per id. A NaN score excludes a token from all merges.
///
/// Returns the merges sorted by rank. Merges that produce the same token are sorted by their left token, longest first.
/// Throws TokenizerError if tokens are too long.
std::vector<RankedMerge> merges_by_score(const Vocabulary& vocabulary, const std::vector<double>& scores);

}  // namespace headgate::tokenize
