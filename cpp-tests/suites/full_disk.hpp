// A disk that is full, as far as this process is concerned.

#ifndef MNNKV_TESTS_FULL_DISK_HPP
#define MNNKV_TESTS_FULL_DISK_HPP

#include <gtest/gtest.h>

#include <csignal>
#include <sys/resource.h>

namespace support {

/// While it lives no file can be written behind so many bytes.
class full_disk {
public:
    explicit full_disk(rlim_t most) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
        EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &old_), 0);
        const rlimit limit = {most, old_.rlim_max};
        EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    }
    ~full_disk() {
        EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &old_), 0);
        std::signal(SIGXFSZ, handler_);
    }
    full_disk(const full_disk&) = delete;
    full_disk& operator=(const full_disk&) = delete;

private:
    void (*const handler_)(int);
    rlimit old_ = {};
};

}  // namespace support

#endif  // MNNKV_TESTS_FULL_DISK_HPP
