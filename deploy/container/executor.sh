#!/bin/sh
# Starts an executor of Spark in a pod of Kubernetes, as the entrypoint.sh of Spark's own images does:
# docs/pipeline/clusters.md#kubernetes. Spark gives the values in the environment (4.3.0: BasicExecutorFeatureStep).
set -eu
python=${PYSPARK_PYTHON-/opt/restante/bin/python}
java=$("$python" -c 'from restante.pipeline.spark.java import find_home; print(find_home())')
spark=$("$python" -c 'import pyspark; print(*pyspark.__path__)')
set --
for option in $(env | sed -n 's/^\(SPARK_JAVA_OPT_[0-9]*\)=.*/\1/p'); do
    eval "set -- \"\$@\" \"\$$option\""
done
exec "$java/bin/java" "$@" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "${SPARK_CONF_DIR:+$SPARK_CONF_DIR:}${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$spark/jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
