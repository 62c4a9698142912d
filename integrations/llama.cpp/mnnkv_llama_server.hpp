// mnn-kv in llama-server: the prompts of its host-memory cache (--cache-ram) as blobs. The lines of llama-server.patch call this.
//
// C++11. A prompt that leaves its slot is encoded by a thread of the cache, which no slot waits for, and is raw until then: bit
// for bit, or after its K and V of f16 have got 8 and 4 bits (--cache-ram-type k8v4). One that comes back is decoded and verified
// before llama.cpp sees it. Whatever fails leaves a prompt raw; one whose blob is damaged is lost: the next best prompt is taken,
// or all computed anew.

#ifndef MNNKV_LLAMA_SERVER_HPP
#define MNNKV_LLAMA_SERVER_HPP

#include "mnnkv_llama_quantise.hpp"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace mnnkv_llama {

/// The buffers of a cached prompt: raw, or as blobs. Copies share them.
class packed_prompt {
public:
    using bytes = std::vector<std::uint8_t>;

    /// Bytes that count against --cache-ram: those of the blobs; until they are there, those that are expected.
    std::size_t size() const { return shared_ ? shared_->counted.load() : 0; }

    /// Gives the buffers back to where pack took them from; this is empty then. False: a blob is damaged, or memory is refused;
    /// `why` says which, and the buffers are lost.
    bool unpack(const std::vector<bytes*>& to, std::string& why) {
        const std::shared_ptr<contents> from = std::move(shared_);
        if (!from) {
            return true;
        }
        try {
            std::lock_guard<std::mutex> lock(from->guard);
            for (std::size_t i = 0; i < to.size(); ++i) {
                if (from->state == contents::raw_only && from.use_count() == 1) {
                    *to[i] = std::move(from->raw[i]);
                } else if (from->state != contents::encoded) {
                    *to[i] = from->raw[i];  // which a copy has, too, or the thread reads
                } else if (!decode(from->blobs[i], from->small.empty() ? nullptr : &from->small[i], *to[i])) {
                    why = mnnkv_llama_last_error();
                    return false;
                }
            }
        } catch (const std::bad_alloc&) {
            why = "out of memory";
            return false;
        }
        return true;
    }

private:
    friend class prompt_packer;

    struct contents {
        enum { raw_only, encoding, encoded } state = raw_only;
        std::mutex guard;
        std::vector<bytes> raw;
        std::vector<buffer> blobs;
        /// Where K and V of the blobs have fewer bits, one for each; else empty.
        std::vector<quantised> small;
        std::atomic<std::size_t> counted{0};
    };

    static bool decode(buffer& blob, const quantised* small, bytes& to) {
        if (blob.size() == 0) {
            return true;
        }
#ifdef MNNKV_LLAMA_DAMAGE  // of tests: whether memory has lost a bit
        blob.data()[blob.size() / 2] ^= MNNKV_LLAMA_DAMAGE ? 1 : 0;
#endif
        std::size_t size = 0;
        if (mnnkv_state_decoded_size(blob.data(), blob.size(), &size) != MNNKV_OK) {
            return false;
        }
        bytes read;
        bytes& target = small != nullptr && small->is_smaller() ? read : to;
        target.resize(size);
        if (mnnkv_state_decode(blob.data(), blob.size(), 0, target.data(), size, &size) != MNNKV_OK) {
            return false;
        }
        if (&target == &read) {
            small->grow(read, to);
        }
        return true;
    }

    std::shared_ptr<contents> shared_;
};

/// The buffers of a prompt of server_prompt_cache: K and V of the model and of a draft model, and checkpoints.
template <class State>
std::vector<packed_prompt::bytes*> buffers_of(State& state) {
    std::vector<packed_prompt::bytes*> all = {&state.data.main, &state.data.drft};
    for (auto& checkpoint : state.prompt.checkpoints) {
        all.insert(all.end(), {&checkpoint.data_tgt, &checkpoint.data_dft, &checkpoint.data_spec});
    }
    return all;
}

/// Encodes prompts on a thread of its own. One thread calls pack and expected.
class prompt_packer {
public:
    prompt_packer() = default;
    prompt_packer(const prompt_packer&) = delete;
    prompt_packer& operator=(const prompt_packer&) = delete;

    ~prompt_packer() {
        {
            std::lock_guard<std::mutex> lock(guard_);
            ends_ = true;
            waiting_.clear();
        }
        wakes_.notify_one();
        if (thread_.joinable()) {
            thread_.join();
        }
    }

    /// K and V of f16 get 8 and 4 bits. Before the first pack.
    void use_fewer_bits() {
        quantises_ = true;
        ratio_ = 0.42;
    }

    /// Bytes that `raw` bytes of a prompt will have: by the ratio of the last one.
    std::size_t expected(std::size_t raw) const { return static_cast<std::size_t>(double(raw) * ratio_.load()); }

    /// Takes the buffers of a prompt of the cache, to be encoded. With several prompts waiting it stays as it is.
    template <class State>
    void pack(State& state) {
        try {
            const auto prompt = std::make_shared<contents>();
            const std::vector<packed_prompt::bytes*> buffers = buffers_of(state);
            prompt->raw.reserve(buffers.size());
            std::lock_guard<std::mutex> lock(guard_);
            if (waiting_.size() >= most_waiting) {
                return;
            }
            start();
            waiting_.push_back(prompt);
            std::size_t raw = 0;
            for (packed_prompt::bytes* each : buffers) {
                raw += each->size();
                prompt->raw.push_back(std::move(*each));
                each->clear();
            }
            prompt->counted = expected(raw);
            state.packed.shared_ = prompt;
        } catch (const std::exception&) {
            return;  // no memory, or no thread: the prompt stays as it is
        }
        wakes_.notify_one();
    }

private:
    using contents = packed_prompt::contents;

    /// Each is the raw memory of a prompt above the limit of the cache.
    static const std::size_t most_waiting = 4;

    void start() {
        if (!thread_.joinable()) {
            thread_ = std::thread([this] { run(); });
        }
    }

    void run() {
        std::unique_lock<std::mutex> lock(guard_);
        for (;;) {
            wakes_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
            if (ends_) {
                return;
            }
            const std::shared_ptr<contents> next = std::move(waiting_.front());
            waiting_.pop_front();
            lock.unlock();
            encode(*next, next.use_count() == 1);
            lock.lock();
        }
    }

    /// forgotten: the cache has dropped the prompt meanwhile.
    void encode(contents& prompt, bool forgotten) {
        {
            std::lock_guard<std::mutex> lock(prompt.guard);
            if (forgotten) {
                return;
            }
            prompt.state = contents::encoding;
        }
        std::size_t raw = 0, size = 0;
        std::vector<buffer> blobs;
        for (const packed_prompt::bytes& bytes : prompt.raw) {
            raw += bytes.size();
        }
        std::vector<quantised> small;
        const bool smaller = compressed(prompt.raw, quantises_ ? &small : nullptr, blobs, size) && size < raw;
        std::lock_guard<std::mutex> lock(prompt.guard);
        prompt.state = smaller ? contents::encoded : contents::raw_only;
        prompt.counted = smaller ? size : raw;
        if (smaller) {
            prompt.blobs = std::move(blobs);
            prompt.small = std::move(small);
            std::vector<packed_prompt::bytes>().swap(prompt.raw);
            ratio_ = double(size) / double(raw);
        }
    }

    static bool compressed(const std::vector<packed_prompt::bytes>& raw, std::vector<quantised>* small,
                           std::vector<buffer>& blobs, std::size_t& size) {
        try {
            blobs.resize(raw.size());
            packed_prompt::bytes fewer;
            layout found;
            if (small != nullptr) {
                small->resize(raw.size());
            }
            for (std::size_t i = 0; i < raw.size(); ++i) {
                const bool shrinks = small != nullptr && (*small)[i].shrink(raw[i], fewer, found);
                const packed_prompt::bytes& given = shrinks ? fewer : raw[i];
                if (!given.empty() &&
                    // One thread: the others are the slots'.
                    !(shrinks ? compress_as(found, given.data(), given.size(), 1, blobs[i])
                              : compress(given.data(), given.size(), 1, blobs[i]))) {
                    return false;
                }
                size += blobs[i].size();
            }
        } catch (const std::bad_alloc&) {
            return false;
        }
        return true;
    }

    std::mutex guard_;
    std::condition_variable wakes_;
    std::deque<std::shared_ptr<contents>> waiting_;
    std::atomic<double> ratio_{1.0};
    bool ends_ = false, quantises_ = false;
    std::thread thread_;
};

}  // namespace mnnkv_llama

#endif  // MNNKV_LLAMA_SERVER_HPP
