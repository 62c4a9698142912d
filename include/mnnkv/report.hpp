// mnnkv/report.hpp: mnnkv/report.h, whose function is a method of mnnkv::session.

#ifndef MNNKV_REPORT_HPP
#define MNNKV_REPORT_HPP

#include "report.h"
#include "session.hpp"

#endif  // MNNKV_REPORT_HPP
