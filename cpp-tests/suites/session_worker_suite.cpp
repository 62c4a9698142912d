// Threads that work for sessions: workers that a process shares, as many as the host leaves cores, or threads of the
// host.

#include "refusal.hpp"
#include "session_host.hpp"
#include "store_host.hpp"
#include "struct_sizes.hpp"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#ifdef __linux__
#include <dirent.h>
#include <fstream>
#include <sched.h>
#endif

namespace {

using namespace support;

mnnkv::session made(const std::string& config, std::uint32_t layers, std::uint32_t host_threads,
                    const mnnkv_executor* executor = nullptr, std::uint32_t lanes = 1) {
    mnnkv_session_options options = {};
    options.layers = layers;
    options.lanes = lanes;
    options.config_json = config.data();
    options.config_len = config.size();
    options.host_threads = host_threads;
    options.executor = executor;
    mnnkv::session session;
    EXPECT_TRUE(ok(session.create(options).code()));
    return session;
}

/// Keeps cold tokens compressed by whoever works by default.
std::string storing_by_default(const std::string& more = "") {
    return object(R"("kv_lossless_enable": true, "kv_lossless_runtime_enable": true, "kv_lossless_front_n": 100,
                     "kv_lossless_runtime_mode": "store", "kv_lossless_block_tokens": 32,
                     "kv_lossless_hot_recent_tokens": 40)", more);
}

void step_until_compressed(session_layer& layer) {
    for (int i = 0; i < 2000 && layer.compressed_tokens() == 0; ++i) {
        ASSERT_NO_FATAL_FAILURE(layer.step(0));
        std::this_thread::sleep_for(std::chrono::milliseconds(i < 10 ? 1 : 10));
    }
    ASSERT_GT(layer.compressed_tokens(), 0u) << "nothing was ever compressed";
}

#ifdef __linux__
std::size_t worker_threads() {
    std::size_t workers = 0;
    DIR* const threads = opendir("/proc/self/task");
    while (const dirent* const thread = readdir(threads)) {
        std::string name;
        std::ifstream(std::string("/proc/self/task/") + thread->d_name + "/comm") >> name;
        workers += name == "mnnkv-worker";
    }
    closedir(threads);
    return workers;
}

/// A thread that has ended, or that no session has any more, is listed for a moment.
testing::AssertionResult left_with(std::size_t workers) {
    for (int i = 0; i < 1000 && worker_threads() != workers; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return testing::AssertionResult(worker_threads() == workers) << worker_threads() << " threads, not " << workers;
}

TEST(SessionWorkers, AreAsManyAsTheSessionWithTheMostHasAndEndWithTheLastOne) {
    ASSERT_TRUE(left_with(0));
    mnnkv::session one = made(object(storing(1)), 1, 0), three = made(object(storing(3)), 1, 0);
    mnnkv_store_config config = mnnkv::make<mnnkv_store_config>();
    config.workers = 2;
    mnnkv::store store;
    ASSERT_TRUE(ok(store.create(&config).code()));
    EXPECT_EQ(worker_threads(), 3u);
    three.reset();
    EXPECT_TRUE(left_with(2));
    three = made(object(storing(4)), 1, 0);
    EXPECT_TRUE(left_with(4));
    three.reset();
    store.reset();
    EXPECT_TRUE(left_with(1));
    one.reset();
    EXPECT_TRUE(left_with(0));
}

TEST(SessionWorkers, WorkForEachOfTwoSessionsWhileTheOtherComesAndGoes) {
    SEEDED_DICE(random, 1801);
    mnnkv::session stays = made(object(storing(1)), 1, 0);
    session_layer layer(stays, 0, half_layout(320), random);
    ASSERT_NO_FATAL_FAILURE(layer.step(200));
    for (int round = 0; round < 10 && !HasFailure(); ++round) {
        mnnkv::session goes = made(object(storing(1 + round % 3)), 1, 0);
        session_layer other(goes, 0, half_layout(320), random);
        ASSERT_NO_FATAL_FAILURE(other.step(150 + 10 * round));
        ASSERT_NO_FATAL_FAILURE(layer.step());
        ASSERT_NO_FATAL_FAILURE(other.step());
        if (round % 2 == 0) {
            ASSERT_NO_FATAL_FAILURE(step_until_compressed(other));
        }
        ASSERT_NO_FATAL_FAILURE(step_until_compressed(layer));
    }
    EXPECT_TRUE(left_with(1));
}

TEST(SessionWorkers, LeaveTheHostItsCores) {
    SEEDED_DICE(random, 1802);
    cpu_set_t all, two;
    ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&two);
    for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&two) < 2; ++core) {
        if (CPU_ISSET(core, &all)) {
            CPU_SET(core, &two);
        }
    }
    ASSERT_EQ(sched_setaffinity(0, sizeof two, &two), 0);
    ASSERT_TRUE(left_with(0));
    struct host {
        std::uint32_t host_threads, lanes;
        std::size_t most;
    };
    for (const host& h : {host{2, 1, 0}, host{0, 2, 0}, host{1000, 1, 0}, host{1, 2, 1}, host{0, 1, 1}}) {
        SCOPED_TRACE(testing::Message() << h.host_threads << " threads, " << h.lanes << " lanes");
        mnnkv::session session = made(storing_by_default(), 1, h.host_threads, nullptr, h.lanes);
        session_layer layer(session, 0, half_layout(320), random);
        ASSERT_NO_FATAL_FAILURE(layer.step());
        // A quota may leave fewer.
        EXPECT_LE(worker_threads(), h.most);
        EXPECT_EQ(mnnkv::measured(metrics_of(session).h2o_lossless_async_queue_peak), worker_threads() > 0);
        EXPECT_TRUE(h.most == 0 || worker_threads() == 1 || std::thread::hardware_concurrency() < 2);
    }
    ASSERT_TRUE(left_with(0));
    const mnnkv::session given = made(object(storing(1)), 1, 1000);
    EXPECT_EQ(worker_threads(), 1u) << "a number in the config holds";
    ASSERT_EQ(sched_setaffinity(0, sizeof all, &all), 0);
}
#endif

/// A host's pool. Threads run jobs in any order; without threads, jobs are held until run_held().
class host_pool {
public:
    explicit host_pool(unsigned threads) {
        for (unsigned i = 0; i < threads; ++i) {
            threads_.emplace_back([this] { work(); });
        }
    }
    host_pool(const host_pool&) = delete;
    ~host_pool() {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            ends_ = true;
        }
        work_.notify_all();
        for (std::thread& thread : threads_) {
            thread.join();
        }
    }

    mnnkv_executor executor() {
        mnnkv_executor executor = mnnkv::make<mnnkv_executor>();
        executor.submit = &submit;
        executor.user = this;
        return executor;
    }

    /// One of so many jobs in a row is refused; 0 = none.
    void refuse_one_in(unsigned count) { refuses_ = count; }
    /// Jobs run inside submit.
    void run_inside_submit() { runs_inside_ = true; }

    std::size_t held() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return jobs_.size();
    }
    void run_held() {
        for (; !jobs_.empty(); jobs_.pop_back()) {
            jobs_.back()();
        }
    }
    unsigned submitted() const { return submitted_; }
    unsigned refused() const { return refused_; }

private:
    static std::int32_t submit(void* user, void (*run)(void*), void* job) {
        host_pool& pool = *static_cast<host_pool*>(user);
        if (pool.refuses_ > 0 && (pool.submitted_ + pool.refused_) % pool.refuses_ == 0) {
            ++pool.refused_;
            return 1;
        }
        ++pool.submitted_;
        if (pool.runs_inside_) {
            run(job);
            return 0;
        }
        {
            const std::lock_guard<std::mutex> lock(pool.mutex_);
            pool.jobs_.emplace_back([=] { run(job); });
        }
        pool.work_.notify_one();
        return 0;
    }

    void work() {
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            work_.wait(lock, [this] { return ends_ || !jobs_.empty(); });
            if (jobs_.empty()) {
                return;
            }
            const std::function<void()> job = jobs_.front();
            jobs_.pop_front();
            lock.unlock();
            job();
            lock.lock();
        }
    }

    std::mutex mutex_;
    std::condition_variable work_;
    std::deque<std::function<void()>> jobs_;
    std::vector<std::thread> threads_;
    unsigned refuses_ = 0, submitted_ = 0, refused_ = 0;
    bool runs_inside_ = false, ends_ = false;
};

TEST(HostPool, CompressesAndRestoresEveryByteInPlaceOfWorkers) {
    SEEDED_DICE(random, 1811);
    struct way {
        unsigned threads, refuse_one_in;
        bool inside;
    };
    for (const way& w : {way{1, 0, false}, way{3, 0, false}, way{3, 2, false}, way{0, 0, true}, way{0, 3, true}}) {
        SCOPED_TRACE(testing::Message() << w.threads << " threads, one in " << w.refuse_one_in << " refused");
        host_pool pool(w.threads);
        pool.refuse_one_in(w.refuse_one_in);
        if (w.inside) {
            pool.run_inside_submit();
        }
        const mnnkv_executor executor = pool.executor();
        mnnkv::session session = made(storing_by_default(), 2, 0, &executor);
        session_layer a(session, 0, half_layout(400), random), b(session, 1, half_layout(400), random);
        for (int step = 0; step < 30 && !HasFailure(); ++step) {
            ASSERT_NO_FATAL_FAILURE(a.step(step == 0 ? 250 : 1));
            ASSERT_NO_FATAL_FAILURE(b.step(step == 0 ? 150 : 3));
        }
        ASSERT_NO_FATAL_FAILURE(step_until_compressed(a));
        ASSERT_NO_FATAL_FAILURE(step_until_compressed(b));
        const mnnkv_metrics metrics = metrics_of(session);
        EXPECT_EQ(metrics.h2o_lossless_fallback_count, 0.0);
        EXPECT_GT(metrics.h2o_lossless_queue_depth_peak, 0.0);
        EXPECT_EQ(metrics.h2o_lossless_backpressure_skip_count > 0.0, w.refuse_one_in > 0);
        EXPECT_EQ(pool.refused() > 0, w.refuse_one_in > 0);
        EXPECT_GT(pool.submitted(), 4u);
#ifdef __linux__
        EXPECT_EQ(worker_threads(), 0u);
#endif
    }
}

TEST(HostPool, ThatRefusesEverythingKeepsTokensRawAndCountsThem) {
    SEEDED_DICE(random, 1812);
    host_pool pool(1);
    pool.refuse_one_in(1);
    const mnnkv_executor executor = pool.executor();
    mnnkv::session session = made(storing_by_default(), 1, 0, &executor);
    session_layer layer(session, 0, half_layout(320), random);
    ASSERT_NO_FATAL_FAILURE(layer.step(200));
    for (int step = 0; step < 10; ++step) {
        ASSERT_NO_FATAL_FAILURE(layer.step());
        ASSERT_EQ(layer.compressed_tokens(), 0u);
    }
    EXPECT_EQ(metrics_of(session).h2o_lossless_backpressure_skip_count, pool.refused());
    EXPECT_EQ(metrics_of(session).h2o_lossless_fallback_count, 0.0);
    EXPECT_EQ(pool.submitted(), 0u);
    pool.refuse_one_in(0);
    ASSERT_NO_FATAL_FAILURE(step_until_compressed(layer));
}

TEST(HostPool, MayRunJobsLateWhileNoCallWaitsForThem) {
    SEEDED_DICE(random, 1813);
    host_pool pool(0);
    const mnnkv_executor executor = pool.executor();
    mnnkv::session session = made(storing_by_default(R"("kv_lossless_max_queue": 4)"), 2, 0, &executor);
    session_layer a(session, 0, half_layout(400), random), b(session, 1, half_layout(400), random);
    std::vector<session_layer*> layers = {&a, &b};
    for (int round = 0; round < 30 && !HasFailure(); ++round) {
        SCOPED_TRACE("round " + std::to_string(round));
        for (session_layer* layer : layers) {
            // Restores by itself what the pool has not decoded.
            ASSERT_NO_FATAL_FAILURE(layer->step(layer->length() == 0 ? 200 : 1));
        }
        EXPECT_LE(pool.held(), 4u + 2 * 400 / 32) << "promises are bounded";
        if (round == 3) {
            ASSERT_TRUE(ok(session.reset_all().code()));
            a.forget();
            b.forget();
        }
        if (random.one_in(3)) {
            pool.run_held();
        }
    }
    pool.run_held();
    for (session_layer* layer : layers) {
        ASSERT_NO_FATAL_FAILURE(layer->step());
    }
    EXPECT_GT(a.compressed_tokens() + b.compressed_tokens(), 0u);
    EXPECT_GT(pool.held(), 0u) << "jobs are promised when the session is destroyed";
    session.reset();
    pool.run_held();
}

TEST(HostPool, MayStillWorkWhenItsSessionsAreDestroyed) {
    SEEDED_DICE(random, 1814);
    host_pool pool(2);
    const mnnkv_executor executor = pool.executor();
    for (int round = 0; round < 50 && !HasFailure(); ++round) {
        mnnkv::session session = made(storing_by_default(), 1, 0, &executor);
        session_layer layer(session, 0, half_layout(320), random);
        ASSERT_NO_FATAL_FAILURE(layer.step(200));
        ASSERT_NO_FATAL_FAILURE(layer.step());
    }
    EXPECT_GE(pool.submitted(), 50u);
}

TEST(HostPool, GetsNothingWhereTheConfigHasNoWorkers) {
    SEEDED_DICE(random, 1815);
    host_pool pool(0);
    const mnnkv_executor executor = pool.executor();
    mnnkv::session session = made(object(storing(0)), 1, 0, &executor);
    session_layer layer(session, 0, half_layout(320), random);
    ASSERT_NO_FATAL_FAILURE(layer.step(200));
    EXPECT_GT(layer.compressed_tokens(), 0u);
    EXPECT_EQ(pool.submitted() + pool.refused(), 0u);
}

TEST(HostPool, IsDescribedByAStructThatIsChecked) {
    host_pool pool(0);
    const std::string config = storing_by_default();
    const auto create = [&](const mnnkv_executor* executor) {
        mnnkv_session_options options = mnnkv::make<mnnkv_session_options>();
        options.abi_version = MNNKV_ABI_VERSION;
        options.layers = options.lanes = 1;
        options.config_json = config.data();
        options.config_len = config.size();
        options.executor = executor;
        mnnkv_session* session = nullptr;
        const mnnkv_status status = mnnkv_session_create(&options, &session);
        EXPECT_EQ(session != nullptr, status == MNNKV_OK);
        mnnkv_session_destroy(session);
        return status;
    };
    mnnkv_executor executor = pool.executor();
    check_sizes(executor, create);
    executor.reserved = 1;
    EXPECT_TRUE(refuses(bad, "executor->reserved is 1", [&] { return create(&executor); }));
    executor.reserved = 0;
    executor.submit = nullptr;
    EXPECT_TRUE(refuses(bad, "executor->submit is NULL", [&] { return create(&executor); }));
}

}  // namespace
