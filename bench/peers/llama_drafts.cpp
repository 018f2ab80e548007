// llama.cpp's drafters that need no second model, behind a C interface for bench/peers/llama_drafts.py.
//
// The loop is that of llama.cpp's own examples/speculative-simple, on its own `common_speculative`: draft, one decode
// of the last token and all drafts, keep those that are right, cut the rest out of the K/V cache. What is chosen is the
// likeliest token, found by a plain scan of the row, which is less work than llama.cpp's samplers do; so its loop is
// measured at its quickest.
//
//     answer(context, drafter, prompt, text)      text: the tokens that are to come, or none: what the model writes
//        context    holds the prompt but for its last token, and holds it again afterwards
//        drafter    null: plain decoding
//
// Threads: one at a time per context. Units: tokens, seconds. Errors: a negative number.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "common.h"
#include "ngram-cache.h"
#include "speculative.h"

namespace {

constexpr int kDecodeFailed = -1;
constexpr int kNoRoom = -2;

// The last token and its drafts, at consecutive positions of sequence 0, each with logits.
class Rows {
 public:
  explicit Rows(int most) : batch_(llama_batch_init(most, 0, 1)) {}
  ~Rows() { llama_batch_free(batch_); }
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;

  const llama_batch& Fill(llama_token last, const llama_tokens& drafts, llama_pos position) {
    common_batch_clear(batch_);
    common_batch_add(batch_, last, position, {0}, true);
    for (const llama_token token : drafts) {
      common_batch_add(batch_, token, ++position, {0}, true);
    }
    return batch_;
  }

 private:
  llama_batch batch_;
};

struct Figures {
  int32_t steps, proposed, accepted;
  double seconds;
};

llama_token Likeliest(llama_context* context, int row) {
  const float* logits = llama_get_logits_ith(context, row);
  const int count = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(context)));
  return static_cast<llama_token>(std::max_element(logits, logits + count) - logits);
}

llama_tokens Drafts(common_speculative* drafter, const llama_tokens& before, llama_token last, int most) {
  llama_tokens drafts;
  if (drafter == nullptr || most <= 0) {
    return drafts;
  }
  common_speculative_get_draft_params(drafter, 0) = {true, most,    static_cast<llama_pos>(before.size()),
                                                     last, &before, &drafts};
  common_speculative_draft(drafter);
  drafts.resize(std::min<size_t>(drafts.size(), most));
  return drafts;
}

}  // namespace

extern "C" {

// `type`: as --spec-type names it. `match`: tokens that have to agree; `least`, `most`: drafts of ngram-mod, and of the
// maps how often a place must have been seen, and drafts. `known`: a file of write_known for ngram-cache, or "".
common_speculative* kvtrie_drafter_open(const char* type, int match, int least, int most, const char* known) {
  common_params_speculative parameters;
  parameters.types = {common_speculative_type_from_name(type)};
  parameters.ngram_mod = {match, most, least};
  const common_params_speculative_ngram_map map{static_cast<uint16_t>(match), static_cast<uint16_t>(most),
                                                static_cast<uint16_t>(least)};
  parameters.ngram_simple = parameters.ngram_map_k = parameters.ngram_map_k4v = map;
  parameters.ngram_cache.lookup_cache_dynamic = known;
  return common_speculative_init(parameters, 1);
}

void kvtrie_drafter_close(common_speculative* drafter) { common_speculative_free(drafter); }

// Another request's tokens, as the server gives them to the drafter that all its slots share.
void kvtrie_drafter_tell(common_speculative* drafter, const llama_token* tokens, int count) {
  common_speculative_begin(drafter, 0, llama_tokens(tokens, tokens + count));
}

// The n-grams of a text in the file that --lookup-cache-dynamic reads.
void kvtrie_drafter_write_known(const char* path, const llama_token* tokens, int count) {
  common_ngram_cache cache;
  llama_tokens text(tokens, tokens + count);
  common_ngram_cache_update(cache, LLAMA_NGRAM_MIN, LLAMA_NGRAM_MAX, text, count, false);
  common_ngram_cache_save(cache, path);
}

int kvtrie_drafter_answer(llama_context* context, common_speculative* drafter, const llama_token* prompt, int length,
                          const llama_token* text, int count, llama_token* answer, Figures* figures) {
  if (length + count > static_cast<int>(llama_n_ctx(context))) {
    return kNoRoom;
  }
  llama_tokens before(prompt, prompt + length - 1);
  before.reserve(length + count);
  llama_token last = prompt[length - 1];
  llama_memory_t memory = llama_get_memory(context);
  Rows rows(static_cast<int>(llama_n_batch(context)));
  const int room = static_cast<int>(llama_n_batch(context)) - 1;
  *figures = {};
  const auto began = std::chrono::steady_clock::now();
  common_speculative_begin(drafter, 0, before);
  for (int made = 0; made < count;) {
    const llama_tokens drafts = Drafts(drafter, before, last, std::min(count - made - 1, room));
    if (llama_decode(context, rows.Fill(last, drafts, static_cast<llama_pos>(before.size()))) != 0) {
      return kDecodeFailed;
    }
    int right = 0;
    for (bool agrees = true; agrees; right += agrees ? 1 : 0) {
      const llama_token likeliest = Likeliest(context, right);
      before.push_back(last);
      last = answer[made] = text == nullptr ? likeliest : text[made];
      ++made;
      agrees = right < static_cast<int>(drafts.size()) && drafts[right] == last;
    }
    if (drafter != nullptr && !drafts.empty()) {
      common_speculative_accept(drafter, 0, static_cast<uint16_t>(right));
    }
    llama_memory_seq_rm(memory, 0, static_cast<llama_pos>(before.size()), -1);
    ++figures->steps;
    figures->proposed += static_cast<int32_t>(drafts.size());
    figures->accepted += right;
  }
  figures->seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  llama_memory_seq_rm(memory, 0, length - 1, -1);
  return 0;
}
}
