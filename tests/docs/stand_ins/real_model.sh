#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/real_model.sh in the examples of documents: a model of two small layers that the test has trained.
echo build/models/SmolLM2-135M-Instruct.Q4_1.gguf
