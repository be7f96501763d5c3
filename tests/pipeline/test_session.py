from pyspark.sql import SparkSession


def test_a_session_counts_days_in_utc_and_guesses_no_type_of_a_partition(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.sources.partitionColumnTypeInference.enabled") == "false"
    assert spark.range(10).selectExpr("sum(id)").collect()[0][0] == 45
