// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_H
#define MNNKV_H
#include "mnnkv/base.h"
#include "mnnkv/session.h"
#include "mnnkv/attend.h"
#include "mnnkv/rows.h"
#include "mnnkv/memory.h"
#include "mnnkv/metrics.h"
#include "mnnkv/scores.h"
#include "mnnkv/heads.h"
#include "mnnkv/park.h"
#include "mnnkv/policy.h"
#include "mnnkv/executor.h"
#include "mnnkv/snapshot.h"
#include "mnnkv/store.h"
#include "mnnkv/layout.h"
#include "mnnkv/quantised.h"
#include "mnnkv/h2o.h"
#include "mnnkv/gear.h"
#include "mnnkv/state.h"
#endif
